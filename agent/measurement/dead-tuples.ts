import type { Session } from '../postgres/connect.ts';

/**
 * Rows that updates and deletes have left behind, as a share of all rows of the tenant's tables. Up to 50 dead rows of a
 * table do not count, because autovacuum leaves them (`autovacuum_vacuum_threshold`). The statistics of a clone begin
 * with nothing, so the estimate of the planner (`reltuples`) counts if it is higher. PostgreSQL keeps all this per
 * database, so it can be read only in a session there.
 */
export async function readDeadTuples(session: Session): Promise<number | null> {
  await session.query('BEGIN READ ONLY');
  const { rows } = await session.query<{ share: number | null }>(
    `SELECT coalesce(sum(n_dead_tup) FILTER (WHERE n_dead_tup > 50), 0)::float8
              / nullif(sum(greatest(n_live_tup, reltuples) + n_dead_tup), 0)::float8 AS share
     FROM pg_catalog.pg_stat_user_tables AS stat JOIN pg_catalog.pg_class AS class ON class.oid = stat.relid`,
  );
  await session.query('COMMIT');
  return rows[0]?.share ?? null;
}

/** The last known share of dead rows of each branch. */
export class DeadTuples {
  readonly #shares = new Map<string, number>();

  shareOf(branchId: string): number | null {
    return this.#shares.get(branchId) ?? null;
  }

  record(branchId: string, share: number | null): void {
    if (share === null) this.#shares.delete(branchId);
    else this.#shares.set(branchId, share);
  }

  forgetExcept(branchIds: ReadonlySet<string>): void {
    for (const branchId of this.#shares.keys()) if (!branchIds.has(branchId)) this.#shares.delete(branchId);
  }
}
