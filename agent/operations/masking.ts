import { createHash } from 'node:crypto';
import { snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { queryLoginName } from '../../shared/branch/login.ts';
import { tableOf } from '../../shared/masking-names.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import { type CloneHost, createClone } from '../cloning/create-clone.ts';
import { suggestedFunction } from '../masking/likely-personal.ts';
import {
  createFunctions,
  dropFunctions,
  emptyTables,
  MisfitError,
  maskValues,
  previewRows,
  refusalOf,
  rewriteCatalogs,
  rewriteTables,
} from '../masking/mask-database.ts';
import { type MaskingProblem, planEmptying, planMasking, rulesIn, shownName } from '../masking/plan.ts';
import { boundedSocket } from '../postgres/bounded-socket.ts';
import { readTenant } from '../postgres/branches.ts';
import {
  identifier,
  inSession,
  inTransaction,
  type Pool,
  type Queryable,
  type Session,
} from '../postgres/connect.ts';
import { dropDatabase, protectWork } from '../postgres/databases.ts';
import { releaseLock, takeLock, withLocks } from '../postgres/locks.ts';
import { dropRoles, rolesOfBranch } from '../postgres/unused-roles.ts';
import type { Excesses } from '../process/excesses.ts';
import { HostError } from '../process/host-error.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import type { AgentSettings } from '../process/settings.ts';
import { asOptions, inBranch, OPTIONS, type RowsHost } from '../rows/branch-session.ts';
import { maskedDatabaseName, maskingRoleName, readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import { changesAt, readChanges } from './snapshot.ts';

interface MaskingHost extends CloneHost {
  postgres: Pool;
  sessions: Pool;
  cloneTurns: CloneTurns;
  excesses: Excesses;
}

const MB = 2 ** 20;

/** Beyond these, the first ones say enough. */
const PROBLEMS_MAX = 200;

const NO_PROBLEMS: MethodResult<'snapshot.mask'>['problems'] = [];

/**
 * Makes a snapshot of a branch in which every column with a rule has other values, or from which the rows are
 * removed. The clone is changed under
 * a name that no rule file admits clients to, by a login that exists for this only, and becomes the snapshot
 * once everything has succeeded. What a killed call has left is dropped first: values that are masked already
 * must not be masked again.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL, STATEMENT_REFUSED
 */
export async function maskSnapshot(
  host: MaskingHost,
  params: Params<'snapshot.mask'>,
  onProgress?: OnProgress,
): Promise<MethodResult<'snapshot.mask'>> {
  const { project_id, branch_id, snapshot_id, source } = params;
  const end = await host.cloneTurns.begin(source, await readTenant(host.postgres, project_id));
  let isCloned = false;
  const cloned = () => {
    if (!isCloned) end();
    isCloned = true;
  };
  try {
    return await withLocks(host.sessions, [`clone:${snapshot_id}`], async (session) => {
      const present = await readSnapshotSize(session, snapshot_id);
      const made = { masked: true, unchanged: false, problems: NO_PROBLEMS };
      if (present !== null) return { ...made, size_bytes: present };
      const changes = await readChanges(session, source);
      if (changes !== null && changes === (await changesAt(session, params.unless_same_as)))
        return { ...made, unchanged: true, size_bytes: 0 };
      await removeMasking(session, snapshot_id);
      await takeLock(session, `source:${source}`);
      await session.query(
        `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, changes, kind) VALUES ($1, $2, $3, $4, $5, 'taken')
         ON CONFLICT (snapshot_id) DO UPDATE SET changes = excluded.changes`,
        [snapshot_id, project_id, branch_id, source, changes],
      );
      const clone = { name: maskedDatabaseName(snapshot_id), source, busy_wait: params.busy_wait };
      const { source_bytes } = await createClone(host, session, clone, partOf(onProgress, 0, 0.2));
      await releaseLock(session, `source:${source}`);
      cloned();
      try {
        // Every table is written again, and until the end of a transaction beside its old file.
        const problems = await host.copyRoom.during(source_bytes, () =>
          changeClone(host, session, params, source_bytes, partOf(onProgress, 0.2, 1)),
        );
        if (problems.length === 0) {
          await closeMasked(session, snapshot_id);
          // Every block was written again.
          await session.query('UPDATE snapshot SET independent = true WHERE snapshot_id = $1', [snapshot_id]);
          return { ...made, size_bytes: (await readSnapshotSize(session, snapshot_id)) ?? 0 };
        }
        await removeMasking(session, snapshot_id);
        await session.query('DELETE FROM snapshot WHERE snapshot_id = $1', [snapshot_id]);
        return { masked: false, unchanged: false, size_bytes: 0, problems: problems.slice(0, PROBLEMS_MAX) };
      } catch (error) {
        await removeMasking(session, snapshot_id);
        throw error;
      }
    });
  } finally {
    cloned();
  }
}

/** Drops the clone that is being masked, and its login. */
async function removeMasking(session: Session, snapshotId: string): Promise<void> {
  await dropDatabase(session, maskedDatabaseName(snapshotId));
  await dropRoles(session, [...rolesOfBranch(snapshotId), maskingRoleName(snapshotId)]);
}

/** Replaces the values of the database, or removes its rows. @returns why not, if it has changed nothing */
async function changeValues(
  own: Session,
  { masking, keep_tables }: Params<'snapshot.mask'>,
  onProgress: OnProgress | undefined,
): Promise<MaskingProblem[]> {
  if (masking === null) {
    const plan = await planEmptying(own, keep_tables);
    if (plan.problems.length === 0) await emptyTables(own, plan);
    return plan.problems;
  }
  const plan = await planMasking(own, masking.rules, masking.unlisted);
  if (plan.problems.length === 0) await maskValues(own, plan, Buffer.from(masking.key, 'base64'), onProgress);
  return plan.problems;
}

async function changeClone(
  { settings, excesses }: MaskingHost,
  session: Session,
  params: Params<'snapshot.mask'>,
  bytes: number,
  onProgress: OnProgress | undefined,
): Promise<MaskingProblem[]> {
  const { snapshot_id } = params;
  const database = maskedDatabaseName(snapshot_id);
  const user = queryLoginName(snapshot_id);
  const owner = maskingRoleName(snapshot_id);
  await openToMasking(session, settings, params, bytes);
  const inClone = <T>(action: (own: Session) => Promise<T>): Promise<T> =>
    inSession(
      {
        host: settings.POSTGRES_SOCKET_DIR,
        port: settings.POSTGRES_PORT,
        database,
        user,
        application_name: 'branchgate-masking',
        options: UNLIMITED,
        stream: () => boundedSocket('masking'),
      },
      action,
    );
  /** Runs what runs no code of the tenant, which could use the rights of the role. */
  const asMember = async (role: string, how: string, action: (own: Session) => Promise<unknown>) => {
    await session.query(`GRANT ${identifier(role)} TO ${identifier(user)} WITH ${how}`);
    await inClone(action);
    await session.query(`REVOKE ${identifier(role)} FROM ${identifier(user)}`);
  };
  const asFunctionOwner = (action: (own: Session) => Promise<unknown>) =>
    params.masking === null ? undefined : asMember(owner, 'INHERIT FALSE, SET TRUE', action);
  try {
    await asFunctionOwner((own) => createFunctions(own, { owner, user }));
    const problems = await inClone(async (own) => {
      const found = await changeValues(own, params, partOf(onProgress, 0, 0.5));
      if (found.length > 0) return found;
      await rewriteTables(own, partOf(onProgress, 0.5, 1));
      // What the tenant's code has made there would be in the way of the end of the login.
      await own.query('DISCARD TEMP');
      return found;
    });
    if (problems.length > 0) return problems;
    await asFunctionOwner((own) => dropFunctions(own, { owner }));
    // With this right, code of the tenant could lock the catalogs of all.
    await asMember('pg_maintain', 'INHERIT TRUE, SET FALSE', rewriteCatalogs);
    return problems;
  } catch (error) {
    if (error instanceof MisfitError) return error.problems;
    const excess = excesses.take(database);
    if (excess) throw new HostError('STATEMENT_REFUSED', `what runs while values are replaced ${excess}`);
    const refusal = refusalOf(error);
    if (!refusal) throw error;
    throw new HostError('STATEMENT_REFUSED', refusal.reason, { sqlstate: refusal.sqlstate });
  }
}

/** The code of the tenant that a change of values runs may take long. It can only slow its own branches. */
const UNLIMITED = asOptions({
  ...OPTIONS,
  statement_timeout: 0,
  transaction_timeout: 0,
  idle_in_transaction_session_timeout: 0,
  // Instead of a policy that hides rows, an error.
  row_security: 'off',
  default_transaction_read_only: 'off',
  default_transaction_isolation: 'read committed',
  log_parameter_max_length_on_error: 0,
  maintenance_work_mem: '64MB',
});

/**
 * Makes the login, with the rights of all owners of objects in the clone: they are logins and groups of this
 * project. The removal of unused roles leaves it alone while its database is there. Another role owns the functions that
 * get the key.
 * @param bytes of the database: the sort of an index takes no more
 */
function openToMasking(
  session: Session,
  settings: AgentSettings,
  { snapshot_id: snapshotId, project_id }: Params<'snapshot.mask'>,
  bytes: number,
): Promise<void> {
  const name = maskedDatabaseName(snapshotId);
  const [login, owner] = [queryLoginName(snapshotId), maskingRoleName(snapshotId)].map(identifier);
  return inTransaction(session, async () => {
    const { rows } = await session.query<{ rolname: string }>(
      `SELECT DISTINCT rolname FROM pg_shdepend JOIN pg_roles ON pg_roles.oid = refobjid
       WHERE dbid = (SELECT oid FROM pg_database WHERE datname = $1) AND deptype = 'o'
         AND refclassid = 'pg_authid'::regclass AND rolname ~ '^[ug]_[0-9a-f]{32}_'`,
      [name],
    );
    await session.query(`CREATE ROLE ${login} LOGIN; CREATE ROLE ${owner} NOLOGIN`);
    for (const { rolname } of rows)
      await session.query(`GRANT ${identifier(rolname)} TO ${login} WITH INHERIT TRUE, SET TRUE`);
    await session.query(
      `${protectWork(settings, name, { project_id, temporaryMb: Math.ceil(bytes / MB) })};
       GRANT CONNECT, TEMPORARY ON DATABASE ${identifier(name)} TO ${login};
       GRANT CREATE ON DATABASE ${identifier(name)} TO ${owner}`,
    );
  });
}

/** Statements that make the masked clone the snapshot, to which nobody can connect, in one transaction. */
function closeMasked(session: Session, snapshotId: string): Promise<void> {
  const [name, snapshot] = [maskedDatabaseName(snapshotId), snapshotDatabaseName(snapshotId)].map(identifier);
  const roles = [queryLoginName(snapshotId), maskingRoleName(snapshotId)].map(identifier).join(', ');
  return inTransaction(session, async () => {
    await session.query(
      `ALTER DATABASE ${name} ALLOW_CONNECTIONS false CONNECTION LIMIT 0;
       COMMENT ON DATABASE ${name} IS NULL;
       REVOKE ALL ON DATABASE ${name} FROM ${roles};
       DROP ROLE ${roles};
       ALTER DATABASE ${name} RENAME TO ${snapshot}`,
    );
  });
}

/** Beyond these, the first ones say enough. */
const SUGGESTIONS_MAX = 500;

/** Databases that are remembered. */
const COVERED_MAX = 1_000;

/**
 * Databases that a policy was found to cover, by names and types, with the counts of their changes at that time.
 * Another comparison would cost a session, and finds the same until something changes.
 */
export class CoveredSources {
  readonly #covered = new Map<string, { policy: string; changes: string }>();

  has(database: string, policy: string, changes: string | null): boolean {
    const known = this.#covered.get(database);
    return changes !== null && known?.policy === policy && known.changes === changes;
  }

  /** @param changes before the comparison; null: it is not known what has changed */
  remember(database: string, policy: string, changes: string | null): void {
    this.#covered.delete(database);
    if (changes === null) return;
    const [oldest] = this.#covered.keys();
    if (this.#covered.size >= COVERED_MAX && oldest !== undefined) this.#covered.delete(oldest);
    this.#covered.set(database, { policy, changes });
  }
}

/**
 * A session counts what it has changed after ten seconds without a statement at the latest. This is longer, because
 * a busy machine delays it.
 */
const COUNTED_AFTER_SECONDS = 30;

/**
 * As `readChanges`, but null while a session may have made a change that is not counted yet. Sessions come first:
 * one that ends counts its changes before it disappears.
 */
async function readCountedChanges(db: Queryable, database: string): Promise<string | null> {
  const { rows } = await db.query(
    `SELECT FROM pg_stat_activity WHERE datname = $1 AND backend_type <> 'autovacuum worker'
     AND (state = 'idle' AND clock_timestamp() - state_change > $2 * interval '1 second') IS NOT TRUE`,
    [database, COUNTED_AFTER_SECONDS],
  );
  return rows.length > 0 ? null : readChanges(db, database);
}

interface ComparisonHost extends RowsHost {
  covered: CoveredSources;
}

/**
 * Compares the policy with a branch as it is, and suggests rules for columns that look personal. It reads as
 * the query login of the branch, which may see fewer rows than the owner.
 * @throws HostError as `inBranch`
 */
export async function inspectMasking(
  host: ComparisonHost,
  params: Params<'masking.inspect'>,
): Promise<MethodResult<'masking.inspect'>> {
  const { database, rules, unlisted, sample } = params;
  if (sample) return comparePolicy(host, params);
  const policy = createHash('sha256')
    .update(JSON.stringify([rules, unlisted]))
    .digest('hex');
  const changes = await readCountedChanges(host.postgres, database);
  if (host.covered.has(database, policy, changes)) return { problems: [], suggestions: [] };
  const result = await comparePolicy(host, params);
  host.covered.remember(database, policy, result.problems.length === 0 ? changes : null);
  return result;
}

const comparePolicy = (
  host: RowsHost,
  { branch_id, database, rules, unlisted, sample }: Params<'masking.inspect'>,
): Promise<MethodResult<'masking.inspect'>> =>
  inBranch(host, { branch_id, database }, 'query', async (session) => {
    const { tables, problems, uncovered } = await planMasking(session, rules, unlisted, {
      sample,
      suggest: sample,
    });
    const columns = new Map(
      tables.flatMap((table) =>
        table.columns.map((column): [string, typeof column] => [
          `${table.schema}.${table.name}.${column.name}`,
          column,
        ]),
      ),
    );
    const suggestions = uncovered.slice(0, SUGGESTIONS_MAX).flatMap(({ table, column, reason }) => {
      if (column === null) return [];
      const found = columns.get(`${table}.${column}`);
      if (!found) return [];
      return [{ table, column, type: found.type, reason, with: suggestedFunction(found, reason) }];
    });
    return { problems: problems.slice(0, PROBLEMS_MAX), suggestions };
  });

/**
 * Shows what a policy would make of rows of a table. The transaction is undone; it is no reading one, because
 * the functions of masking exist in it.
 * @throws HostError TABLE_NOT_FOUND, and as `inBranch`
 */
export const previewMasking = (
  host: RowsHost,
  { branch_id, database, rules, key, table, limit }: Params<'masking.preview'>,
): Promise<MethodResult<'masking.preview'>> =>
  inBranch(host, { branch_id, database }, 'change', async (session, { undo }) => {
    undo();
    // The statements of a preview read the table in the same order.
    await session.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ');
    const plan = await planMasking(session, rules, 'keep');
    const wanted = tableOf({ table });
    const found = plan.tables.find(({ schema, name }) => schema === wanted.schema && name === wanted.name);
    if (!found) throw new HostError('TABLE_NOT_FOUND', `there is no table ${table}`);
    const problems = plan.problems.filter((problem) => problem.table === shownName(found));
    const isWrong = (name: string) => problems.some(({ column }) => column === name);
    const columns = rulesIn(plan, found).map(({ column, rule }) => ({
      column,
      rule: isWrong(column.name) ? null : rule,
    }));
    const rows = await previewRows(session, found, columns, { key: Buffer.from(key, 'base64'), limit });
    const shown = columns.map(({ column: { name, type }, rule }) => ({
      name,
      type,
      with: rule?.with ?? null,
    }));
    return { columns: shown, rows, problems };
  });
