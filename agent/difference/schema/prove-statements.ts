import { groupName } from '../../../shared/branch/login.ts';
import { type CloneHost, createClone } from '../../cloning/create-clone.ts';
import { readTenant } from '../../postgres/branches.ts';
import { AS_TEXT, identifier, inDatabase, type Pool, type Session } from '../../postgres/connect.ts';
import { dropDatabase, protectWork } from '../../postgres/databases.ts';
import { tryLock, withLocks } from '../../postgres/locks.ts';
import { sqlState } from '../../postgres/postgres-failure.ts';
import { extensionsOfProject, openPublic } from '../../postgres/project-extensions.ts';
import type { Excesses } from '../../process/excesses.ts';
import { HostError } from '../../process/host-error.ts';
import type { RowsHost } from '../../rows/branch-session.ts';
import { proofDatabaseName } from '../../snapshots/snapshot-databases.ts';
import { type ComparisonLogin, dumpAsLogin, inComparison } from './comparison-login.ts';
import type { SchemaPlan, Statement } from './plan-statements.ts';
import { type EntryPair, isEqual, pairEntries, type SchemaEntry, schemaEntries } from './schema-entries.ts';

/**
 * Statements are tried before they are shown: in a scratch database with the schema of the other side and without a row.
 * What they leave is compared with the schema of the branch. Rows are not tried; a rehearsal does that.
 */

export interface ProofHost extends RowsHost, CloneHost {
  sessions: Pool;
  excesses: Excesses;
}

/** Why the statements were not tried. */
export type Unproven = 'too_large' | 'too_long' | 'busy';

export interface Proof {
  /** Those that ran without an error, and dropped nothing that the branch has. */
  statements: Statement[];
  /** What still differs after them. */
  left: EntryPair[];
}

export interface Limits {
  /** Milliseconds of the comparison that are left. */
  left: () => number;
  signal: AbortSignal;
}

/** Scratch databases of a host. A tenant has one. */
const PLACES = ['0', '1'];
/** More take too long to be made again. */
const ENTRIES_MAX = 12_000;
const TEXT_MAX = 6 * 2 ** 20;
/** Of one statement, and of all of them with the schema. Milliseconds. */
const STATEMENT_WITHIN_MS = 5_000;
const WITHIN_MS = 15_000;
/** Entries that are made with one message. */
const TOGETHER = 100;
/** A second try without what failed. */
const TRIES = 2;
const TIMED_OUT = new Set(['57014', '25P04', '55P03']);

export async function proveStatements(
  host: ProofHost,
  login: ComparisonLogin,
  {
    before,
    after,
    plan,
  }: { before: readonly SchemaEntry[]; after: readonly SchemaEntry[]; plan: SchemaPlan },
  { left, signal }: Limits,
): Promise<Proof | Unproven> {
  const text = before.reduce((sum, { definition }) => sum + definition.length, 0);
  if (before.length > ENTRIES_MAX || text > TEXT_MAX) return 'too_large';
  return withLocks(host.sessions, [], async (session) => {
    if (!(await takePlace(session, login, await readTenant(host.postgres, login.project_id)))) return 'busy';
    const until = performance.now() + Math.min(WITHIN_MS, left());
    const within = () => Math.max(1, Math.round(until - performance.now()));
    const scratch: Scratch = { host, session, login, within, signal };
    let { statements } = plan;
    try {
      for (let n = 0; n < TRIES; n += 1) {
        const tried = await tryStatements(scratch, before, after, statements);
        if (tried.failed.size === 0) return { statements, left: await stillLeft(scratch, tried, after) };
        statements = statements.filter((statement) => !tried.failed.has(keyOf(statement)));
      }
    } catch (error) {
      if (isTimeout(error)) return 'too_long';
      throw error;
    }
    // Nothing is known to be safe.
    return { statements: [], left: pairEntries(before, after).filter((pair) => !isEqual(pair)) };
  });
}

const isTimeout = (error: unknown) =>
  (error instanceof HostError && error.code === 'TIME_LIMIT_REACHED') || TIMED_OUT.has(sqlState(error) ?? '');

async function takePlace(session: Session, { id }: ComparisonLogin, tenant: string): Promise<boolean> {
  if (!(await tryLock(session, `proof:tenant ${tenant}`))) return false;
  // The removal of leftovers takes this one.
  if (!(await tryLock(session, `clone:${id}`))) return false;
  for (const place of PLACES) if (await tryLock(session, `proof:${place}`)) return true;
  return false;
}

/** Where statements are tried. */
interface Scratch {
  host: ProofHost;
  session: Session;
  login: ComparisonLogin;
  /** Milliseconds that are left. */
  within: () => number;
  signal: AbortSignal;
}

/** Runs `action` in an empty database. @returns what it returned, and the schema that it left */
async function inScratch<T>(
  { host, session, login, within, signal }: Scratch,
  action: (scratch: Session) => Promise<T>,
): Promise<{ result: T; entries: SchemaEntry[] }> {
  const database = proofDatabaseName(login.id);
  try {
    await openScratch(host, session, login, database);
    const options = {
      statement_timeout: STATEMENT_WITHIN_MS,
      transaction_timeout: 0,
      check_function_bodies: 'off',
    };
    return await host.excesses.during(database, 'a statement of the schema difference', async () => {
      const result = await inComparison(host, login, database, { within: within(), options }, action);
      const archive = await dumpAsLogin(login, database, { within: within(), signal, isWhole: true });
      return { result, entries: schemaEntries(archive) };
    });
  } finally {
    await dropDatabase(session, database);
  }
}

/** The statements of one entry are shown together, and a right by itself. */
const keyOf = (statement: Statement): SchemaEntry | Statement => statement.of ?? statement;

interface Tried {
  /** Keys of statements that failed, or that dropped what the branch has. */
  failed: ReadonlySet<SchemaEntry | Statement>;
  /** Entries of the schema after the statements. */
  found: SchemaEntry[];
  left: EntryPair[];
}

async function tryStatements(
  scratch: Scratch,
  before: readonly SchemaEntry[],
  after: readonly SchemaEntry[],
  statements: readonly Statement[],
): Promise<Tried> {
  const { result, entries: found } = await inScratch(scratch, async (session) => {
    const unmade = await makeSchema(session, before, scratch.within);
    const kept = await readKept(session);
    const failed = await run(session, statements);
    const now = new Map((await readKept(session)).map((row) => [row.name, row.id]));
    // Dropped and made again: rows would be lost.
    const lost = kept.filter(({ name, id }) => now.has(name) && now.get(name) !== id);
    for (const statement of statements)
      if (lost.length > 0 && statement.act === 'drop') failed.add(keyOf(statement));
    return { failed, unmade };
  });
  const isMade = ({ before: old, after: present }: EntryPair) =>
    !(old === null && present && result.unmade.has(present.definition));
  const left = pairEntries(found, after).filter((pair) => !isEqual(pair) && isMade(pair));
  return { failed: result.failed, found, left };
}

/**
 * PostgreSQL writes some expressions in another way once they are made again, such as `IN` with a column of type `varchar`.
 * Entries that still differ are therefore compared with the schema of the branch that was made again too.
 */
async function stillLeft(
  scratch: Scratch,
  { found, left }: Tried,
  after: readonly SchemaEntry[],
): Promise<EntryPair[]> {
  if (left.length === 0) return left;
  const nameOf = ({ before: old, after: present }: EntryPair) => {
    const entry = present ?? old;
    return JSON.stringify([entry?.kind, entry?.schema, entry?.tag]);
  };
  const again = await inScratch(scratch, (session) => makeSchema(session, after, scratch.within)).catch(
    (error: unknown) => {
      if (isTimeout(error)) return null;
      throw error;
    },
  );
  if (again === null) return left;
  const different = new Set(
    pairEntries(found, again.entries)
      .filter((pair) => !isEqual(pair))
      .map(nameOf),
  );
  return left.filter((pair) => different.has(nameOf(pair)));
}

async function openScratch(
  host: ProofHost,
  session: Session,
  login: ComparisonLogin,
  database: string,
): Promise<void> {
  await dropDatabase(session, database);
  await createClone(host, session, { name: database, source: null, busy_wait: 0 });
  const name = identifier(database);
  const extensions = await extensionsOfProject(session, login.project_id);
  await inDatabase(host.settings, database, (empty) =>
    openPublic(empty, groupName(login.project_id, 'owner'), extensions),
  );
  await session.query(
    `${protectWork(host.settings, database, { project_id: login.project_id })};
     GRANT CONNECT ON DATABASE ${name} TO ${identifier(login.name)};
     GRANT CREATE, TEMPORARY ON DATABASE ${name} TO ${identifier(groupName(login.project_id, 'owner'))}`,
  );
}

/** @returns definitions of entries that cannot be made again here, such as those of another role */
async function makeSchema(
  session: Session,
  entries: readonly SchemaEntry[],
  within: () => number,
): Promise<Set<string>> {
  const unmade = new Set<string>();
  const made = entries.map(({ definition }) => definition).filter((text) => text !== '');
  const runAll = (texts: readonly string[]) => session.query({ text: texts.join('\n'), types: AS_TEXT });
  for (let at = 0; at < made.length; at += TOGETHER) {
    if (within() <= 1)
      throw new HostError('TIME_LIMIT_REACHED', 'the schema takes too long to be made again');
    const some = made.slice(at, at + TOGETHER);
    const isDone = await runAll(some).then(
      () => true,
      (error) => giveUp(error),
    );
    if (isDone) continue;
    for (const text of some)
      await runAll([text]).catch((error) => {
        giveUp(error);
        unmade.add(text);
      });
  }
  return unmade;
}

/** @throws what no other statement would survive either */
function giveUp(error: unknown): false {
  const state = sqlState(error);
  if (state === undefined || TIMED_OUT.has(state) || state.startsWith('57P') || state.startsWith('08'))
    throw error;
  return false;
}

async function run(
  session: Session,
  statements: readonly Statement[],
): Promise<Set<SchemaEntry | Statement>> {
  const failed = new Set<SchemaEntry | Statement>();
  for (const statement of statements)
    if (statement.isProven)
      await session.query({ text: statement.text, types: AS_TEXT }).catch((error) => {
        giveUp(error);
        failed.add(keyOf(statement));
      });
  return failed;
}

/** What has rows or values: tables, sequences and columns, without those that are computed. */
const KEPT = `
  SELECT format('%I.%I', nspname, relname) AS name, c.oid::text AS id
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE relkind IN ('r', 'p', 'S', 'f') AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
  UNION ALL
  SELECT format('%I.%I.%I', nspname, relname, attname), attrelid || '.' || attnum
  FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid JOIN pg_namespace AS n ON n.oid = relnamespace
  WHERE relkind IN ('r', 'p', 'f') AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    AND nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')`;

const readKept = async (session: Session) => (await session.query<{ name: string; id: string }>(KEPT)).rows;
