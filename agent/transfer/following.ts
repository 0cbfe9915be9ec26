import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { loginName } from '../../shared/branch/login.ts';
import type { FollowProblem } from '../../shared/protocol/follow.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { followName } from '../../shared/protocol/transfer-operations.ts';
import { identifier, inTransaction, literal, type Queryable, type Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import { restoreLogins } from '../postgres/roles.ts';
import { endSessions } from '../postgres/sessions.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { readSequences, setLargestKeys, setSequences } from './copy-rows.ts';
import {
  asOwners,
  boundingSubscriber,
  closingRoles,
  endClients,
  endLeft,
  type FollowHost,
  hasSubscriber,
  inFollowed,
  makingSubscriber,
  type FollowedDatabase as Of,
  subscriptionOf,
  untilSessionsEnded,
  withFollowed,
} from './followed-session.ts';
import type { LeftAloneRequest } from './left-alone.ts';
import { Refused, readSourceUrl, resolveSource, type Source, short } from './source-address.ts';
import { policyOf } from './source-policy.ts';
import { inSource, readAuthorities } from './source-session.ts';
import { dropAtSource, publicationsOf, removalOf, type SlotNames } from './source-slot.ts';

/**
 * A branch that follows a database elsewhere: a subscription of PostgreSQL in its database, which a role of its own
 * owns, and a row in the agent's tables. The row says what is wanted, so an agent that is killed at any point is
 * succeeded by one that brings PostgreSQL there.
 */

type CutOver = NonNullable<MethodResult<'follow.cutover'>['cut_over']>;
interface CutOverOutcome extends Omit<CutOver, 'dropped_at_source' | 'message'> {
  /** Milliseconds since the epoch. */
  compared_at: number;
}

export interface Followed extends SlotNames {
  project_id: string;
  branch_id: string;
  database: string;
  tables: [schema: string, name: string][] | null;
  /** Objects of the source that are left alone. */
  left_alone: LeftAloneRequest;
  /** Differences of the schemas that are no news, by their digests. */
  known: string[];
  /** Tables whose policies are forced at the end. */
  forced: [schema: string, name: string][];
  /** Print of the schema of another host when it was copied; null: a tenant chose the source. */
  print: string | null;
  /** Null while only the copy is made. */
  since: Date | null;
  problem: FollowProblem | null;
  cutover: 'refusing' | 'finishing' | 'done' | null;
  refused_at: Date | null;
  /** Outcome of a cut-over, from its last step on. */
  outcome: CutOverOutcome | null;
  additions: { id: string; at: string; statement: string }[];
  /** The gateway blocks writes of the project, because its storage quota is used up. */
  is_over_quota: boolean;
}

/** The branches that follow, or one of them by its id or its database. */
export async function readFollowed(
  db: Queryable,
  by: { branch_id?: string; database?: string } = {},
): Promise<Followed[]> {
  const { rows } = await db.query<Followed>(
    `SELECT project_id, branch_id, database, slot, publication, tables, left_alone, known, forced, print, since, problem, cutover, refused_at, outcome, additions,
       EXISTS (SELECT FROM project WHERE project.project_id = following.project_id AND write_blocked_since IS NOT NULL) AS is_over_quota
     FROM following
     WHERE ($1::uuid IS NULL OR branch_id = $1) AND ($2::text IS NULL OR database = $2) ORDER BY database`,
    [by.branch_id ?? null, by.database ?? null],
  );
  return rows;
}

/** @throws HostError INVALID_CALL */
export async function requireFollowed(db: Queryable, branchId: string): Promise<Followed> {
  const [followed] = await readFollowed(db, { branch_id: branchId });
  if (followed?.since) return followed;
  throw new HostError('INVALID_CALL', 'the branch follows nothing');
}

export const storeProblem = (db: Queryable, branchId: string, problem: FollowProblem | null) =>
  db.query('UPDATE following SET problem = $2 WHERE branch_id = $1', [branchId, JSON.stringify(problem)]);

const CONNECT_WITHIN_MS = 10_000;
const AUTHORITIES = 'follow-authorities.pem';
const authoritiesFile = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>) => join(STATE_DIR, AUTHORITIES);

/** Writes the authorities that the worker of a subscription knows the source's certificate by. */
const writeAuthorities = async (settings: AgentSettings): Promise<void> =>
  writeFile(authoritiesFile(settings), (await readAuthorities(settings)).join('\n'), { mode: 0o644 });

/** libpq's form of a source (PostgreSQL documentation, 32.1.1.1), which the worker connects with. */
function connectionText(settings: AgentSettings, source: Source): string {
  const { host, address, port, user, password, database, tls } = source;
  const parts = {
    host,
    hostaddr: address,
    port: String(port),
    user,
    password,
    dbname: database,
    ...(tls === 'channel_binding'
      ? { sslmode: 'require', channel_binding: 'require', require_auth: 'scram-sha-256' }
      : { sslmode: 'verify-full', sslrootcert: authoritiesFile(settings) }),
    sslcertmode: 'disable',
    gssencmode: 'disable',
    connect_timeout: '10',
    application_name: 'branchgate',
    keepalives_idle: '30',
    keepalives_interval: '10',
    keepalives_count: '3',
    tcp_user_timeout: '60000',
  };
  return Object.entries(parts)
    .map(([name, value]) => `${name}='${value.replaceAll(/[\\']/g, '\\$&')}'`)
    .join(' ');
}

/** Reads what `connectionText` has written. */
function readConnection(text: string): Source {
  const parts = Object.fromEntries(
    [...text.matchAll(/(\w+)='((?:[^'\\]|\\.)*)'/gs)].map(([, name = '', value = '']) => [
      name,
      value.replaceAll(/\\(.)/gs, '$1'),
    ]),
  );
  const { host = '', hostaddr = '', port = '', user = '', password = '', dbname = '', sslmode } = parts;
  const tls = sslmode === 'verify-full' ? 'certificate' : 'channel_binding';
  return {
    host,
    address: hostaddr,
    port: Number(port),
    user,
    password,
    database: dbname,
    mustVerify: tls === 'certificate',
    tls,
  };
}

export interface Subscription {
  oid: string;
  enabled: boolean;
  source: Source;
}

/** Subscriptions are in a catalog of all databases. @returns null if the branch has none */
export async function readSubscription(
  db: Queryable,
  { project_id, database }: Of,
): Promise<Subscription | null> {
  const { rows } = await db.query<{ oid: string; enabled: boolean; connection: string }>(
    `SELECT pg_subscription.oid::text AS oid, subenabled AS enabled, subconninfo AS connection
     FROM pg_subscription JOIN pg_database ON pg_database.oid = subdbid
     WHERE subname = $1 AND datname = $2`,
    [subscriptionOf(project_id), database],
  );
  const [found] = rows;
  return found ? { oid: found.oid, enabled: found.enabled, source: readConnection(found.connection) } : null;
}

/** Reads what the address of a source is, and how the source proves who it is. @throws HostError INVALID_CALL, POSTGRES_UNAVAILABLE */
async function reachSource(
  host: FollowHost,
  { source_url: url, ...call }: Params<'follow.start'>,
): Promise<Source> {
  const parts = readSourceUrl(url);
  const source = parts.ok ? await resolveSource(host.settings, parts.value, policyOf(call)) : parts;
  if (!source.ok) throw new HostError('INVALID_CALL', source.failure.message);
  const bounds = { within: CONNECT_WITHIN_MS };
  const tls = await inSource(host.settings, source.value, bounds, async ({ tls }) => tls);
  if (!tls.ok) throw new HostError('POSTGRES_UNAVAILABLE', `the source: ${tls.failure.message}`);
  return { ...source.value, tls: tls.value };
}

/**
 * Makes the branch follow the slot of its copy, which was swapped in. From then on its clients can only read.
 * Repeated, it finishes or confirms the first call.
 * @throws HostError INVALID_CALL, POSTGRES_UNAVAILABLE, STATEMENT_REFUSED
 */
export const startFollowing = (
  host: FollowHost,
  params: Params<'follow.start'>,
): Promise<MethodResult<'follow.start'>> =>
  withFollowed(host, params, async (session) => {
    const { project_id, branch_id, database } = params;
    const [present] = await readFollowed(session, { branch_id });
    if (!present) throw new HostError('INVALID_CALL', 'no copy was made that the branch could follow');
    if (!(await readSubscription(session, params))) {
      const source = await reachSource(host, params);
      if (source.tls === 'certificate') await writeAuthorities(host.settings);
      await session.query('UPDATE following SET database = $2 WHERE branch_id = $1', [branch_id, database]);
      const isThere = await hasSubscriber(session, project_id);
      await inTransaction(session, () => session.query(makingSubscriber(params, isThere)));
      await makeSubscription(host, present, database, connectionText(host.settings, source));
    }
    await inTransaction(session, async () => {
      await session.query(boundingSubscriber(params));
      await session.query(
        'UPDATE following SET since = coalesce(since, clock_timestamp()) WHERE branch_id = $1',
        [branch_id],
      );
      await restoreLogins(session, { projectId: project_id });
    });
    await endClients(session, params);
    if (present.problem === null) await enable(host, params);
    return {};
  });

/**
 * The subscription stays disabled until the branch is read-only. The source keeps a transaction until its end: a worker here would
 * keep a large one in files, which `temp_file_limit` does not count.
 */
async function makeSubscription(
  host: FollowHost,
  followed: Followed,
  database: string,
  connection: string,
): Promise<void> {
  const publications = publicationsOf(followed).map(identifier).join(', ');
  try {
    await inFollowed(host, { ...followed, database }, 'change', (session) =>
      session.query(
        `CREATE SUBSCRIPTION ${identifier(subscriptionOf(followed.project_id))} CONNECTION ${literal(connection)}
         PUBLICATION ${publications}
         WITH (enabled = false, create_slot = false, slot_name = ${literal(followed.slot)}, copy_data = false,
           streaming = off, run_as_owner = false, disable_on_error = false)`,
      ),
    );
  } catch (error) {
    const sqlstate = sqlState(error);
    if (!(error instanceof Error) || sqlstate === undefined || asHostError(error) !== error) throw error;
    // libpq says why it cannot connect, and names no password.
    const message = short(error.message);
    if (sqlstate.startsWith('08')) throw new HostError('POSTGRES_UNAVAILABLE', `the source: ${message}`);
    throw new HostError('STATEMENT_REFUSED', message, { sqlstate });
  }
}

const alter = (host: Pick<FollowHost, 'settings'>, of: Of, change: string) =>
  inFollowed(host, of, 'change', (session) =>
    session.query(`ALTER SUBSCRIPTION ${identifier(subscriptionOf(of.project_id))} ${change}`),
  );

export const enable = (host: Pick<FollowHost, 'settings'>, of: Of) => alter(host, of, 'ENABLE');

/** Lets the subscription take over the tables that were added to its publications, whose rows are copied first. */
export const refresh = (host: Pick<FollowHost, 'settings'>, of: Of) =>
  alter(host, of, 'REFRESH PUBLICATION WITH (copy_data = true)');

/** Workers of the subscription in the database `$1`. */
export const WORKERS =
  "FROM pg_stat_activity WHERE datname = $1 AND backend_type LIKE 'logical replication%'";
const WORKER = { within: 5_000, every: 2 };
const ENDING = { within: 5_000 };

/** Disables the subscription, and waits until its workers have ended. */
export async function disable(
  host: Pick<FollowHost, 'settings' | 'postgres'>,
  of: Of,
  before: (session: Session) => Promise<unknown> = async () => {},
): Promise<void> {
  await inFollowed(host, of, 'change', async (session) => {
    await session.query(`ALTER SUBSCRIPTION ${identifier(subscriptionOf(of.project_id))} DISABLE`);
    await untilWorkersEnded(host.postgres, of);
    await before(session);
  });
}

async function untilWorkersEnded(db: Queryable, { database }: Of): Promise<void> {
  const haveEnded = async () => (await db.query(`SELECT ${WORKERS}`, [database])).rowCount === 0;
  if (await pollUntil(haveEnded, WORKER)) return;
  // A statement that it waits for, such as a trigger of the schema.
  if (!(await endSessions(db, WORKERS, [database], ENDING)))
    throw new HostError('HOST_BUSY', `the worker of ${database} does not end`);
}

const SEQUENCES_WITHIN_MS = 3_000;

/**
 * Sets the sequences of the branch, which are not among the changes of the source: from the values that they have
 * there, or from the largest keys here while the source cannot be read, or has values that PostgreSQL refuses here.
 * @param session of the role of the subscription, which may not read the tables of the largest keys
 */
async function setAllSequences(
  host: FollowHost,
  followed: Of,
  subscription: Subscription,
  session: Session,
): Promise<number> {
  const { rows } = await session.query('SELECT FROM pg_catalog.pg_sequences LIMIT 1');
  if (rows.length === 0) return 0;
  const bounds = { within: SEQUENCES_WITHIN_MS };
  const values = await inSource(host.settings, subscription.source, bounds, ({ session: there }) =>
    readSequences(there),
  );
  const fromKeys = () => asOwners(host, followed, setLargestKeys);
  if (!values.ok) return fromKeys();
  return setSequences(session, values.value).catch((error) => {
    if (error instanceof Refused) return fromKeys();
    throw error;
  });
}

/** Tables that were added at the source are copied before a clone. Milliseconds. */
const COPIED = { within: 20_000, every: 200 };

/**
 * Holds a branch that follows still, for a clone: PostgreSQL copies no database with a worker. A killed agent
 * leaves it so, and the next one continues, because the row says that it follows. The clone has rows of
 * `pg_subscription_rel`, which are without effect where there is no subscription, but one of a table that is
 * being copied would keep the table from being dropped there.
 * @param session holds the lock of the source
 * @returns a function that lets it continue
 * @throws HostError SOURCE_BUSY
 */
export async function pauseFollowing(
  host: FollowHost,
  session: Session,
  database: string,
): Promise<() => Promise<void>> {
  const [followed] = await readFollowed(session, { database });
  const subscription = followed?.since ? await readSubscription(session, followed) : null;
  if (!followed || !subscription) return async () => {};
  const areCopied = () =>
    inFollowed(host, followed, 'change', async (own) => {
      const { rows } = await own.query("SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r' LIMIT 1");
      return rows.length === 0;
    });
  if (!(await pollUntil(areCopied, COPIED)))
    throw new HostError('SOURCE_BUSY', 'a table that was added at the source is being copied');
  await disable(host, followed, (own) => setAllSequences(host, followed, subscription, own));
  await untilSessionsEnded(host.postgres, followed);
  return async () => {
    const [present] = await readFollowed(session, { database });
    if (!present?.since || present.problem) return;
    // The clone is made, and the agent tries it again within a second.
    await enable(host, present).catch((error: Error) =>
      host.log('follow.not_enabled', { branch_id: present.branch_id, reason: error.message }),
    );
  };
}

/** Enables what was left disabled: a clone by an agent that was killed. A clone under way has the lock. */
export async function continueFollowing(
  host: FollowHost,
  tryLock: (session: Session, database: string) => Promise<boolean>,
): Promise<void> {
  for (const { database, since, problem, project_id } of await readFollowed(host.postgres)) {
    if (!since || problem) continue;
    const subscription = await readSubscription(host.postgres, { project_id, database });
    if (!subscription || subscription.enabled) continue;
    await withLocks(host.sessions, [], async (session) => {
      if (!(await tryLock(session, database))) return;
      const [present] = await readFollowed(session, { database });
      const left = present ? await readSubscription(session, present) : null;
      if (present?.since && !present.problem && left && !left.enabled) {
        await enable(host, present);
        host.log('follow.continued', { branch_id: present.branch_id });
      }
    });
  }
}

/** Removes the subscription, without its slot. */
async function dropSubscription(host: FollowHost, session: Session, of: Of): Promise<void> {
  if (!(await readSubscription(session, of))) return;
  const name = identifier(subscriptionOf(of.project_id));
  await disable(host, of, async (own) => {
    await own.query(`ALTER SUBSCRIPTION ${name} SET (slot_name = NONE)`);
    await own.query(`DROP SUBSCRIPTION ${name}`);
  });
}

/** The copy has left them to this end: PostgreSQL replicates into no table whose policies apply to its owner. */
async function forcePolicies(
  host: FollowHost,
  { project_id, forced }: Followed,
  database: string,
): Promise<void> {
  if (forced.length === 0) return;
  const names = forced.map(([schema, name]) => `${identifier(schema)}.${identifier(name)}`);
  await asOwners(host, { project_id, database }, async (session) => {
    for (const name of names)
      await session.query(`ALTER TABLE IF EXISTS ONLY ${name} FORCE ROW LEVEL SECURITY`);
  });
}

/** Lets clients write again. */
async function openBranch(
  host: FollowHost,
  session: Session,
  followed: Of & { branch_id: string },
  isCutOver: boolean,
): Promise<void> {
  await inTransaction(session, async () => {
    await session.query(
      isCutOver
        ? "UPDATE following SET since = NULL, cutover = 'done' WHERE branch_id = $1"
        : 'DELETE FROM following WHERE branch_id = $1',
      [followed.branch_id],
    );
    // Otherwise it would count as a setting that the owner has made.
    const owner = loginName(followed.branch_id, 'owner');
    const { rows } = await session.query('SELECT FROM pg_roles WHERE rolname = $1', [owner]);
    if (rows.length > 0)
      await session.query(`ALTER ROLE ${identifier(owner)} RESET default_transaction_read_only`);
    await restoreLogins(session, { projectId: followed.project_id });
  });
  await endClients(session, followed);
  await untilSessionsEnded(host.postgres, followed);
  await session.query(closingRoles(followed));
  await dropUnusedRoles(session);
}

type Stopped = MethodResult<'follow.stop'>;

/**
 * Stops following, whatever the source says, and reports what is left there. Repeated, it tries that again if the
 * URL is given.
 * @throws HostError INVALID_CALL for a URL that is none
 */
export const stopFollowing = (host: FollowHost, params: Params<'follow.stop'>): Promise<Stopped> =>
  withFollowed(host, params, (session) => endFollowing(host, session, params));

/**
 * `stopFollowing` for a caller that has the branch's locks.
 * @param options.isCutOver the row stays, with the outcome
 * @param options.leavesSource the former host of a move drops the slot itself, with the login
 */
export async function endFollowing(
  host: FollowHost,
  session: Session,
  {
    branch_id,
    project_id,
    database,
    source_url,
    ...names
  }: Omit<Params<'follow.stop'>, 'slot' | 'publication'> & Partial<SlotNames>,
  { isCutOver = false, leavesSource = false } = {},
): Promise<Stopped> {
  const [followed] = await readFollowed(session, { branch_id });
  const subscription = await readSubscription(session, { project_id, database });
  const from = await sourceToClean(host, subscription, source_url);
  const slot = followed?.slot ?? names.slot ?? followName(project_id);
  const publication = followed ? followed.publication : (names.publication ?? null);
  if (subscription) await dropSubscription(host, session, { project_id, database });
  if (followed?.since) await forcePolicies(host, followed, database);
  const dropped =
    from && !leavesSource ? await dropAtSource(host.settings, from, { slot, publication }) : null;
  await openBranch(host, session, { branch_id, project_id, database }, isCutOver);
  if (leavesSource) return { dropped_at_source: false, message: null };
  if (dropped?.ok || (!dropped && !followed)) return { dropped_at_source: true, message: null };
  return {
    dropped_at_source: false,
    message: `The slot keeps WAL at the source until its owner removes it: ${removalOf({ slot, publication })}.${
      dropped ? ` ${dropped.failure.message}` : ''
    }`,
  };
}

/** For a branch that is dropped or kept: its database cannot be dropped while it has a subscription. */
export async function leaveSource(
  host: FollowHost,
  session: Session,
  { branch_id, project_id, database }: Of & { branch_id: string },
): Promise<void> {
  const [followed] = await readFollowed(session, { branch_id });
  if (!followed || followed.cutover === 'done') return;
  await endLeft(session, { project_id });
  const { message } = await endFollowing(host, session, {
    branch_id,
    project_id,
    database,
    source_url: null,
  });
  if (message) host.log('follow.left_at_source', { branch_id, reason: message });
}

async function sourceToClean(
  host: FollowHost,
  subscription: Subscription | null,
  url: string | null,
): Promise<Source | null> {
  if (subscription) return subscription.source;
  if (url === null) return null;
  const parts = readSourceUrl(url);
  const source = parts.ok ? await resolveSource(host.settings, parts.value, policyOf({})) : parts;
  return source.ok ? source.value : null;
}
