import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import { groupName, loginName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { type AccessHost, enforceAccess, isUnenforced } from '../access/enforce-access.ts';
import { introduceProject } from '../access/store-access.ts';
import {
  ADOPTED,
  branchesOf,
  type CloneState,
  claimBranches,
  cloneStates,
  nameHeld,
} from '../cloning/claim-branch.ts';
import { type CloneHost, createClone, createUnusedClone } from '../cloning/create-clone.ts';
import { setBaselines } from '../measurement/database-statistics.ts';
import type { KnownSizes } from '../measurement/sizes.ts';
import { isAway, showDatabases, socketOf, withAdminConsole } from '../pooler/admin-console.ts';
import { instancesNow } from '../pooler/restart-state.ts';
import { restoreBranchSettings } from '../postgres/branch-settings.ts';
import { type BranchIdentity, readMaker } from '../postgres/branches.ts';
import {
  identifier,
  inSession,
  inTransaction,
  literal,
  type Pool,
  type Session,
} from '../postgres/connect.ts';
import {
  dropDatabase,
  type FoundDatabase,
  grantDatabase,
  markText,
  protectDatabase,
  readDatabases,
} from '../postgres/databases.ts';
import { releaseLock, runAlone, takeLock, withLocks } from '../postgres/locks.ts';
import { recordExtensions } from '../postgres/project-extensions.ts';
import { ensureGroups, ensureLogins, restoreLogins } from '../postgres/roles.ts';
import { clearDatabase } from '../postgres/sessions.ts';
import { dropRoles, rolesOfBranch } from '../postgres/unused-roles.ts';
import { DEFAULT_PRIVILEGES, lostGroups } from '../privileges/default-privileges.ts';
import { furnishDatabase } from '../privileges/new-database.ts';
import { type PrivilegesHost, repair } from '../privileges/repair-privileges.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { pollUntil } from '../process/loops.ts';
import type { OnProgress } from '../process/progress.ts';
import type { AgentSettings } from '../process/settings.ts';
import { closeAsSnapshot, readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import type { Spares } from '../snapshots/spares.ts';
import type { Standing } from '../snapshots/standing-snapshots.ts';
import { leaveSource } from '../transfer/following.ts';

/** What it takes to create and to drop a branch. */
export interface BranchHost extends AccessHost, CloneHost, PrivilegesHost {
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
  spares: Spares;
  standing: Standing;
  log: Log;
  sizes: KnownSizes;
}

/**
 * Makes the logins, rules and pooler entries, with one application of the rules. It runs concurrently with
 * the clones.
 */
export function prepareBranches(
  host: BranchHost,
  params: Params<'branch.prepare'>,
): Promise<Record<string, never>> {
  const { project_id, access } = params;
  const branches = branchesOf(params);
  const locks = branches.map(({ branch_id }) => `prepare:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    // Committed separately, because the concurrent clone waits for the claim.
    await claimBranches(session, branches);
    await inTransaction(session, async () => {
      await ensureGroups(session, project_id);
      await ensureLogins(session, project_id, branches);
      await introduceProject(session, project_id, access);
      // Without a write block, the logins get the rest of their rights when their databases are opened.
      if (access.write_blocked) await restoreLogins(session, { branches: idsOf(branches) });
    });
    // Usually the access in this call is no newer than the one in effect, and syncing the rules is enough.
    if (await isUnenforced(session, project_id)) await enforceAccess(host, session, project_id);
    else await host.rules.sync();
    return {};
  });
}

const idsOf = (branches: readonly BranchIdentity[]) => branches.map(({ branch_id }) => branch_id);

type CloneResult = MethodResult<'branch.clone'>;

/**
 * Makes the databases under names that no tenant can reach. Databases that an earlier call made are adopted,
 * even if the agent of that call died before they were complete.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, DATABASE_NAME_HELD, INVALID_CALL, POOLER_UNAVAILABLE
 */
export function cloneBranches(
  host: BranchHost,
  params: Params<'branch.clone'>,
  onProgress?: OnProgress,
): Promise<CloneResult> {
  const { project_id, source, extensions = [] } = params;
  const branches = branchesOf(params);
  const locks = branches.map(({ branch_id }) => `clone:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    await claimBranches(session, branches);
    // With a source the groups exist already, and `branch.prepare` locks them for a while.
    if (source === null) {
      await inTransaction(session, () => ensureGroups(session, project_id));
      await recordExtensions(session, project_id, extensions);
    }
    const states = await cloneStates(session, branches);
    const result = await cloneMissing(host, session, states, params, onProgress);
    // Repeated after an adoption: the agent that made the clone may have died before it.
    for (const { branch, state } of source === null ? states : [])
      if (state !== 'finalized')
        await furnishDatabase(host, { database: buildDatabaseName(branch.job_id), project_id });
    return result;
  });
}

/**
 * Clones the source for the first missing branch, and that clone for the others, which no client can use yet;
 * the spares of a snapshot come first.
 * The clients of the source are held during the first clone only, and every branch has the same content, also
 * if a crash comes in between.
 */
async function cloneMissing(
  host: BranchHost,
  session: Session,
  states: readonly { branch: BranchIdentity; state: CloneState }[],
  { project_id, source, busy_wait }: Params<'branch.clone'>,
  onProgress: OnProgress | undefined,
): Promise<CloneResult> {
  const [first, ...others] = states.filter(({ state }) => state === 'nothing').map(({ branch }) => branch);
  if (!first) return ADOPTED;
  const built = states.find(({ state }) => state === 'built')?.branch;
  if (built) {
    await cloneBuilt(host, session, built, [first, ...others]);
    return ADOPTED;
  }
  // Finalized branches without any other: what the host lost since is made again from one of them.
  const from = states.find(({ state }) => state === 'finalized')?.branch.database ?? source;
  const name = buildDatabaseName(first.job_id);
  if (from !== null) await takeLock(session, `source:${from}`);
  const result =
    from === null
      ? await createClone(host, session, { name, source: null, busy_wait }, onProgress)
      : await host.standing.clone(host, session, { project_id, name, source: from, busy_wait }, onProgress);
  // Other clones of the source can begin.
  if (from !== null) await releaseLock(session, `source:${from}`);
  const names = others.map(({ job_id }) => buildDatabaseName(job_id));
  const taken = from === null ? [] : await host.spares.take(session, from, names);
  const spareless = others.filter(({ job_id }) => !taken.includes(buildDatabaseName(job_id)));
  await cloneBuilt(host, session, first, spareless);
  return result;
}

async function cloneBuilt(
  host: BranchHost,
  session: Session,
  from: BranchIdentity,
  branches: readonly BranchIdentity[],
): Promise<void> {
  const source = buildDatabaseName(from.job_id);
  for (const { job_id } of branches)
    await createUnusedClone(host, session, { name: buildDatabaseName(job_id), source });
}

/**
 * Gives the clones their final names and opens them to the logins of their branches, in one transaction. A
 * clone does not inherit the privileges on its source, and PUBLIC may connect by default.
 * @throws HostError DATABASE_NAME_HELD, INVALID_CALL
 */
export function finalizeBranches(
  host: BranchHost,
  params: Params<'branch.finalize'>,
): Promise<Record<string, never>> {
  const branches = branchesOf(params);
  const locks = branches.map(({ branch_id }) => `clone:${branch_id}` as const);
  return withLocks(host.sessions, locks, async (session) => {
    const names = branches.flatMap(({ job_id, database }) => [buildDatabaseName(job_id), database]);
    const found = await readDatabases(session, names);
    const unopened = branches.filter((branch) => !isOpen(branch, found));
    await inTransaction(session, async () => {
      if (unopened.length > 0) await session.query(unopened.map((branch) => opening(host, branch)).join(';'));
      // The project may be write-blocked, so the rest of the rights is not the same for every branch. The
      // agent of an earlier release may have opened the branches without it.
      await restoreLogins(session, { branches: idsOf(branches) });
      await restoreBranchSettings(session, { branches: idsOf(branches) });
    });
    return {};
  });
}

function isOpen({ branch_id, job_id, database }: BranchIdentity, found: FoundDatabase[]): boolean {
  const finalized = found.find(({ name }) => name === database);
  if (finalized?.mark?.branch_id === branch_id) return true;
  if (finalized) throw nameHeld(database);
  if (!found.some(({ name }) => name === buildDatabaseName(job_id)))
    throw new HostError('INVALID_CALL', `no clone was built under ${job_id}`);
  return false;
}

/** Statements that give a clone its final name. The last one opens the database, with its limits. */
export function opening({ settings }: Pick<BranchHost, 'settings'>, branch: BranchIdentity): string {
  const { project_id, branch_id, job_id, database } = branch;
  const name = identifier(database);
  const ownerGroup = identifier(groupName(project_id, 'owner'));
  return `ALTER DATABASE ${identifier(buildDatabaseName(job_id))} RENAME TO ${name};
    REVOKE ALL ON DATABASE ${name} FROM PUBLIC;
    ${grantDatabase(branch)};
    ALTER ROLE ${identifier(loginName(branch_id, 'owner'))} IN DATABASE ${name} SET role = ${ownerGroup};
    COMMENT ON DATABASE ${name} IS ${literal(markText(branch))};
    INSERT INTO branch_usage (branch_id) VALUES (${literal(branch_id)}) ON CONFLICT DO NOTHING;
    ${protectDatabase(settings, database)}`;
}

/** Longer than the pooler refuses a database after one of its own logins failed (`server_login_retry`). */
const TRY_FOR_MS = 4_000;
const TRY_EVERY_MS = 100;
/**
 * Reads the default privileges, which the clone may have inherited without those that a login dropped: the
 * first session in a database costs tens of milliseconds of processor time, so there is no other one for
 * that. The statistics are flushed because the session stays open in the pooler, and would otherwise report
 * this transaction to the branch's first measurement.
 */
const PROOF = `
  SELECT current_user AS login, pg_catalog.current_database() AS database, pg_catalog.pg_stat_force_next_flush(),
    ARRAY (${DEFAULT_PRIVILEGES}) AS privileges`;
/** PgBouncer's message before it checks a password. Its SQLSTATE is the same for all its refusals. */
const POOLER_FULL = /^no more connections allowed \(max_client_conn\)/;

/** A branch, and the password of its read-write login. */
type Proved = BranchIdentity & { password: string };

/**
 * Logins at a time: the first session in a new database costs processor time, and the clients need some too.
 */
const CONCURRENT = 4;

/** Logs in to every branch. @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE */
export async function proveBranches(
  host: BranchHost,
  params: Params<'branch.prove'>,
): Promise<MethodResult<'branch.prove'>> {
  const branches = branchesOf(params);
  let slowest = 0;
  const proveNext = async () => {
    for (let branch = branches.shift(); branch; branch = branches.shift())
      slowest = Math.max(slowest, await prove(host, branch));
  };
  const ids = branches.map(({ branch_id }) => branch_id);
  await Promise.all(Array.from({ length: CONCURRENT }, proveNext));
  await setBaselines(host.postgres, ids);
  return { login_ms: slowest };
}

/**
 * Connects as the branch's first client will, with the same password and through the pooler. It uses the unix
 * socket, because no network may be admitted yet. When clients have taken all connections of the pooler, two
 * separate checks replace it: the pooler serves the database, and PostgreSQL admits the login there. They
 * skip the password.
 * @returns milliseconds that the login took
 * @throws HostError PROOF_FAILED, POOLER_UNAVAILABLE
 */
async function prove(host: BranchHost, branch: Proved): Promise<number> {
  const { settings } = host;
  let failure: unknown;
  const proof = await pollUntil(
    async () => {
      const started = performance.now();
      try {
        const { privileges } = await logIn(settings, branch).catch((error) => {
          if (!(error instanceof Error && POOLER_FULL.test(error.message))) throw error;
          return logInAroundFullPooler(settings, branch);
        });
        const login_ms = performance.now() - started;
        if (lostGroups(branch.project_id, privileges).length > 0) await repair(host, branch);
        return { login_ms };
      } catch (error) {
        failure = error;
        return null;
      }
    },
    { within: TRY_FOR_MS, every: TRY_EVERY_MS },
  );
  if (proof) return proof.login_ms;
  if (failure instanceof HostError) throw failure;
  const reason = failure instanceof Error ? failure.message : String(failure);
  const code = isAway(failure) ? 'POOLER_UNAVAILABLE' : 'PROOF_FAILED';
  throw new HostError(code, `logging in to ${branch.database} through the pooler failed: ${reason}`);
}

interface Reached {
  login: string;
  database: string;
  /** Default privileges, as `lostGroups` takes them. */
  privileges: string[];
}

/** @param socket of one of the two servers; by default of the pooler that clients reach */
async function logIn(
  settings: AgentSettings,
  { branch_id, database, password }: Proved,
  socket = socketOf(settings, instancesNow(settings).newClients),
): Promise<Reached> {
  const user = loginName(branch_id, 'read_write');
  const { rows } = await inSession({ ...socket, user, database, password }, (session) =>
    session.query<Reached>(PROOF),
  );
  const [reached] = rows;
  if (reached?.login === user && reached.database === database) return reached;
  throw new HostError(
    'PROOF_FAILED',
    `the login to ${database} ended up as ${reached?.login} in ${reached?.database}`,
  );
}

async function logInAroundFullPooler(settings: AgentSettings, branch: Proved): Promise<Reached> {
  const { database } = branch;
  // PgBouncer admits its console user even when it is full.
  const served = await withAdminConsole(settings, showDatabases);
  if (!served.some(({ name, paused }) => name === database && !paused)) {
    throw new HostError('PROOF_FAILED', `the pooler is full, and does not serve ${database}`);
  }
  return logIn(settings, branch, { host: settings.POSTGRES_SOCKET_DIR, port: settings.POSTGRES_PORT });
}

/**
 * Removes the branch as far as it exists: first access to it, then the database, then the logins. Waits for a
 * preparation or clone of the branch that still runs.
 */
export function dropBranch(
  host: BranchHost,
  params: Params<'branch.drop'>,
): Promise<MethodResult<'branch.drop'>> {
  const { branch_id } = params;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    if (!(await isWanted(session, params))) return { dropped: false };
    await closeBranch(host, session, branch_id);
    await leaveSource(host, session, params);
    const doomed = await databasesOf(session, params);
    for (const { name } of doomed) await dropDatabase(session, name);
    await forgetBranch(session, branch_id);
    return { dropped: doomed.length > 0 };
  });
}

/**
 * Whether the branch is still the one that the call is about. No step of a restoration has begun, or can
 * begin meanwhile.
 */
async function isWanted(
  session: Session,
  { branch_id, made_by }: Pick<Params<'branch.drop'>, 'branch_id' | 'made_by'>,
): Promise<boolean> {
  if (made_by === null) return true;
  return (await readMaker(session, branch_id)) === made_by;
}

/** Closes both ports to the branch's logins. */
async function closeBranch({ rules }: BranchHost, session: Session, branchId: string): Promise<void> {
  await session.query('DELETE FROM login WHERE branch_id = $1', [branchId]);
  await rules.sync();
}

/** Removes what the agent knows of a branch whose databases are gone, and its logins. */
async function forgetBranch(session: Session, branchId: string): Promise<void> {
  for (const table of ['network_rule', 'sql_rule'])
    await session.query(`DELETE FROM ${table} WHERE branch_id = $1`, [branchId]);
  await session.query('DELETE FROM branch WHERE branch_id = $1', [branchId]);
  await dropRoles(session, rolesOfBranch(branchId));
}

/**
 * The branch's databases, finalized or not. A finalized one counts by its mark alone, because another branch may have
 * taken the name since a first call has forgotten this one. A clone without its final name carries the id of the job
 * that made it.
 */
async function databasesOf(
  session: Session,
  params: BranchIdentity,
): Promise<{ name: string; finalized: boolean }[]> {
  const { rows } = await session.query<{ job_id: string; database: string }>(
    'SELECT job_id, database FROM branch WHERE branch_id = $1',
    [params.branch_id],
  );
  const builds = [params, ...rows].map(({ job_id }) => buildDatabaseName(job_id));
  // Without the row, only the mark of a database says that it is the branch's.
  const names = rows[0] && [...builds, params.database, rows[0].database];
  const found = await readDatabases(session, names);
  return found
    .filter(({ name, mark }) => builds.includes(name) || mark?.branch_id === params.branch_id)
    .map(({ name }) => ({ name, finalized: !builds.includes(name) }));
}

/**
 * Removes the branch as `branch.drop` does, but keeps its finalized database as a snapshot, so that the
 * deletion can be undone.
 */
export function keepBranch(
  host: BranchHost,
  params: Params<'branch.keep'>,
): Promise<MethodResult<'branch.keep'>> {
  const { branch_id, snapshot_id } = params;
  return withLocks(host.sessions, [`prepare:${branch_id}`, `clone:${branch_id}`], async (session) => {
    if (!(await isWanted(session, params))) return { kept: false, size_bytes: 0 };
    await closeBranch(host, session, branch_id);
    await leaveSource(host, session, params);
    for (const { name, finalized } of await databasesOf(session, params)) {
      if (!finalized) await dropDatabase(session, name);
      else await keepDatabase(host, session, { ...params, database: name });
    }
    await forgetBranch(session, branch_id);
    const size = await readSnapshotSize(session, snapshot_id);
    return { kept: size !== null, size_bytes: size ?? 0 };
  });
}

const keepDatabase = (
  { postgres }: BranchHost,
  session: Parameters<typeof closeBranch>[1],
  params: Params<'branch.keep'>,
) =>
  runAlone(
    { postgres, session },
    params.database,
    () => session.query(closeAsSnapshot(params, 'deleted')),
    async (signal) => {
      await clearDatabase(postgres, params.database, signal);
      return true;
    },
  );

/** The rest of the agent's sessions is for other projects. */
export const SIDE_BY_SIDE = 6;

/** The sessions of clients that a clone of the branch ends. The pooler's come over the socket. */
export async function countSessions(
  { postgres }: Pick<BranchHost, 'postgres'>,
  { database }: Params<'branch.sessions'>,
): Promise<MethodResult<'branch.sessions'>> {
  const { rows } = await postgres.query<{ direct: number }>(
    `SELECT count(*)::int AS direct FROM pg_stat_get_activity(NULL) AS session
     WHERE client_addr IS NOT NULL AND datid = (SELECT oid FROM pg_database WHERE datname = $1)`,
    [database],
  );
  return { direct: rows[0]?.direct ?? 0 };
}
