/**
 * Statistics of a session are reported at the latest ten seconds after its work, which can be after the measurement
 * that saw its client.
 */
const REPORTED_WITHIN_MS = 15_000;

/**
 * When clients last used each database, by its oid. PostgreSQL's statistics do not distinguish a client's work from
 * that of autovacuum, of the agent's own sessions and of a session that the pooler keeps open. What happened while no
 * client was there is therefore nobody's usage.
 */
export class ClientActivity {
  #usedAt = new Map<string, number>();

  /** @param at milliseconds of a monotonic clock */
  record(database: string, at: number): void {
    this.#usedAt.set(database, at);
  }

  /** Whether a client can have caused what the statistics report since the previous measurement. */
  isUsedSince(database: string, measuredAt: number): boolean {
    return (this.#usedAt.get(database) ?? Number.NEGATIVE_INFINITY) >= measuredAt - REPORTED_WITHIN_MS;
  }

  forgetExcept(databases: ReadonlySet<string>): void {
    for (const database of this.#usedAt.keys()) if (!databases.has(database)) this.#usedAt.delete(database);
  }
}
