import { randomUUID } from 'node:crypto';
import type { FollowProblem } from '../../shared/protocol/follow.ts';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { fail, type Result } from '../../shared/result.ts';
import { dumpAsLogin, withComparisonLogin } from '../difference/schema/comparison-login.ts';
import type { SchemaEntry } from '../difference/schema/schema-entries.ts';
import { readFacts } from '../difference/schema/schema-facts.ts';
import { exportSnapshot, identifier, inTransaction, type Session } from '../postgres/connect.ts';
import { databasePrint } from '../postgres/database-print.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { pollUntil } from '../process/loops.ts';
import {
  type CopiedTable,
  listTables,
  missingRows,
  presentRows,
  readSample,
  refused,
  type Sample,
  tableName,
} from './copy-rows.ts';
import {
  type CopiedSchema,
  copiedSchema,
  type ReadSide,
  readChanges,
  readLeft,
  type SourceChanges,
} from './followed-schema.ts';
import { asOwners, type FollowHost, inFollowed } from './followed-session.ts';
import { disable, enable, type Followed, readSubscription, refresh, storeProblem } from './following.ts';
import { readLeftAlone } from './left-alone.ts';
import { finding, Refused, short } from './source-address.ts';
import { isPublished, readCatalog, type TableRow } from './source-catalog.ts';
import { dumpWanted, readSchemaFacts } from './source-schema.ts';
import { inSource } from './source-session.ts';
import { hasApplied, publishTable, writtenLsn } from './source-slot.ts';

/** Changes in the schema of a source since it was copied, and their consequences here. */

const COMPARE_WITHIN_MS = 30_000;

interface Compared {
  /** Print of the catalogs of the source. */
  print: string;
  /** Null: the print is the one of the last comparison. */
  changes: SourceChanges | null;
  schema: CopiedSchema;
}

/**
 * Compares the schemas by a dump of each side, unless the catalogs of the source are those of the last comparison, and
 * stores which policies are forced there.
 * @param print of that
 * @returns what keeps a side from being read now
 */
export async function compareWithSource(
  host: FollowHost,
  followed: Followed,
  print: string | null = null,
): Promise<Result<Compared, SourceFinding>> {
  const subscription = await readSubscription(host.postgres, followed);
  if (!subscription) return fail(finding('connection', 'The branch has no subscription.'));
  const { source } = subscription;
  return inSource(
    host.settings,
    source,
    { within: COMPARE_WITHIN_MS },
    async ({ session }): Promise<Compared> => {
      await session.query('BEGIN');
      const present = await databasePrint(session, 'schema');
      if (present === print) return { print, changes: null, schema: { entries: [], forced: [] } };
      const known = await readSchemaFacts(session);
      const { leftAlone } = await readLeftAlone(session, followed.left_alone);
      const { archive, choice } = await dumpWanted(host, source, known, {
        project_id: followed.project_id,
        snapshot: await exportSnapshot(session),
        tables: followed.tables,
        leftAlone,
        sameRoles: followed.print !== null,
        within: COMPARE_WITHIN_MS,
      });
      const schema = copiedSchema(archive, choice);
      const here = await readBranch(host, followed);
      const changes = await inFollowed(host, followed, 'read', (own) =>
        readChanges(
          { entries: here, facts: (oids) => readFacts(own, oids) },
          { entries: schema.entries, facts: (oids) => readFacts(session, oids) },
          new Set(followed.known),
        ),
      );
      await recordForced(host, followed, schema);
      return { print: present, changes, schema };
    },
  );
}

/** Policies are forced at the end, so a change of that is no difference now. */
async function recordForced(host: FollowHost, followed: Followed, { forced }: CopiedSchema): Promise<void> {
  const [known, present] = [followed.forced, forced].map((tables) => JSON.stringify(tables));
  if (known !== present)
    await host.postgres.query('UPDATE following SET forced = $2 WHERE branch_id = $1', [
      followed.branch_id,
      present,
    ]);
}

async function readBranch(
  { settings, postgres }: FollowHost,
  { project_id, database }: Followed,
): Promise<SchemaEntry[]> {
  const dumped = await withComparisonLogin({ settings, postgres }, project_id, [database], (login) =>
    dumpAsLogin(login, database, { within: COMPARE_WITHIN_MS }),
  );
  return copiedSchema(dumped, { tables: null, policies: [] }).entries;
}

const STATEMENTS_MAX = 50;
const ADDITION_MAX = 4_000;
/** Additions are reported for as long as the gateway may be away for an upgrade. */
const REPORTED_FOR_MS = 3_600_000;
const REPORTED_MAX = 50;

const differs = ({ statements }: SourceChanges): FollowProblem => ({
  code: 'schema',
  message:
    'The schema of the source has changed by more than an addition. Resume with apply_changes to run the statements here, or undo the change at the source and resume.',
  table: null,
  statement:
    statements.length === 0
      ? null
      : statements
          .slice(0, STATEMENTS_MAX)
          .map((statement) => `${statement.slice(0, ADDITION_MAX)};`)
          .join('\n'),
});

const UNDO = 'Undo the change at the source and resume, or stop following and begin again.';

const notModelled = (changes: SourceChanges): FollowProblem => ({
  ...differs(changes),
  message: `The schema of the source has changed, and no statement makes the same change here, whose values may be in no change of the source: ${short(changes.unmodelled.join(', '))}. ${UNDO}`,
});

const losesValues = (changes: SourceChanges): FollowProblem => ({
  ...differs(changes),
  message: `The values of columns that are new, renamed or of another type are in no change of the source, so they cannot be applied here. ${UNDO}`,
  table: short(changes.lost.map(([schema, name]) => tableName({ schema, name })).join(', ')),
});

/** The error of the driver for a statement that the server has not ended in time. */
const isTimeout = (error: unknown) => error instanceof Error && error.message === 'Query read timeout';

const refusedHere = (changes: SourceChanges, error: unknown): FollowProblem => ({
  ...differs(changes),
  message: `${error instanceof Refused ? error.finding.message : 'A statement of the schema takes too long here.'} ${UNDO}`,
});

/**
 * Runs statements of a source's schema as one transaction. They name everything with its schema. One that ends the
 * transaction is refused, as one of a lying source.
 */
const makeAll = (session: Session, statements: readonly string[]): Promise<void> =>
  inTransaction(session, async () => {
    await session.query('SET LOCAL search_path = public, pg_temp; SAVEPOINT changes');
    for (const text of [...statements, 'RELEASE SAVEPOINT changes'])
      await session.query(text).catch((error) => {
        throw refused(error, (reason) =>
          finding('schema', `PostgreSQL refuses a statement of the schema here: ${reason}.`, {
            statement: short(text),
          }),
        );
      });
  });

const wasComputed = (table: CopiedTable): FollowProblem => ({
  code: 'schema',
  message:
    'The values of a column of another type differ from the source. USING has computed them there, so they are in no change. Give the column its former values at the source and resume, or stop following and begin again.',
  table: short(tableName(table)),
  statement: null,
});

/** Until the branch has applied what was written when the rows were read. */
const LEVEL_WITHIN_MS = 15_000;
/** A row that is changed meanwhile is no difference, so only those that stay the same at the source are. */
const COMPARISONS = 3;

/**
 * Compares rows of tables with a widened column, once the branch is level.
 * @returns the table whose values differ; null if none does, or if that cannot be known now
 */
async function differingTable(
  host: FollowHost,
  followed: Followed,
  widened: readonly (readonly [schema: string, name: string])[],
): Promise<CopiedTable | null> {
  const subscription = await readSubscription(host.postgres, followed);
  if (!subscription) return null;
  const { source, oid } = subscription;
  const within = COMPARE_WITHIN_MS + COMPARISONS * LEVEL_WITHIN_MS;
  const compared = await inSource(host.settings, source, { within }, async ({ session: there }) => {
    const untilLevel = async () => {
      const lsn = await writtenLsn(there);
      return pollUntil(() => hasApplied(host.postgres, oid, lsn), { within: LEVEL_WITHIN_MS, every: 100 });
    };
    const differs = async (table: CopiedTable) => {
      let left: Sample = await readSample(there, table, table.rows);
      for (let n = 0; n < COMPARISONS && left.digests.length > 0; n += 1) {
        if (!(await untilLevel())) return false;
        const missing = await asOwners(host, followed, (here) => missingRows(here, table, left));
        left = await presentRows(there, table, missing);
      }
      return left.digests.length > 0;
    };
    for (const table of await listTables(there, widened)) if (await differs(table)) return table;
    return null;
  });
  return compared.ok ? compared.value : null;
}

/**
 * Brings the schema of a branch to that of its source, if that takes additions only. The caller has the lock of the
 * branch, and the subscription is disabled or waits for it.
 * @param appliesAll whether every change is applied, as a person has decided
 * @returns what is in the way; null if the branch can follow
 */
async function applyChanges(
  host: FollowHost,
  followed: Followed,
  { changes, schema }: { changes: SourceChanges; schema: CopiedSchema },
  appliesAll: boolean,
): Promise<FollowProblem | null> {
  const { statements, areAdditions, unmodelled, lost, newTables } = changes;
  if (unmodelled.length > 0) return notModelled(changes);
  if (statements.length === 0) return null;
  if (!appliesAll && !areAdditions) return differs(changes);
  if (lost.length > 0) return losesValues(changes);
  try {
    await asOwners(host, followed, (session) => makeAll(session, statements));
  } catch (error) {
    if (!(error instanceof Refused) && sqlState(error) === undefined && !isTimeout(error)) throw error;
    return refusedHere(changes, error);
  }
  await recordAdditions(host, followed, statements);
  await recordLeft(host, followed, { entries: schema.entries, facts: async () => changes.facts });
  return newTables.length > 0 ? publishTables(host, followed, newTables) : null;
}

/** Stores what still differs, such as an expression that PostgreSQL writes in another way: it is no news. */
async function recordLeft(host: FollowHost, followed: Followed, there: ReadSide): Promise<void> {
  const entries = await readBranch(host, followed);
  const left = await inFollowed(host, followed, 'read', (own) =>
    readLeft({ entries, facts: (oids) => readFacts(own, oids) }, there),
  );
  await host.postgres.query('UPDATE following SET known = $2 WHERE branch_id = $1', [
    followed.branch_id,
    JSON.stringify([...new Set([...followed.known, ...left])]),
  ]);
}

const notPublished = (publication: string, tables: readonly TableRow[]): FollowProblem => ({
  code: 'schema',
  message: `The source has new tables that are not in the publication ${short(publication)}, so their rows would not follow. Add them to it, or leave them empty here, and resume.`,
  table: short(tables.map((table) => tableName(table)).join(', ')),
  statement:
    `ALTER PUBLICATION ${identifier(publication)} ADD TABLE ${tables.map((table) => tableName(table)).join(', ')}`.slice(
      0,
      ADDITION_MAX,
    ),
});

/**
 * Publishes new tables, unless the owner of the source has made the publication. A partitioned table has no rows; its
 * partitions are tables of their own.
 * @returns what is in the way; a table that nobody publishes would stay empty here, also after the cut-over
 */
async function publishTables(
  host: FollowHost,
  followed: Followed,
  tables: readonly (readonly [schema: string, name: string])[],
): Promise<FollowProblem | null> {
  const subscription = await readSubscription(host.postgres, followed);
  if (!subscription) return null;
  const names = new Set(tables.map((name) => JSON.stringify(name)));
  const { publication, slot } = followed;
  const bounds = { within: COMPARE_WITHIN_MS, mode: 'change' } as const;
  const published = await inSource(host.settings, subscription.source, bounds, async ({ session }) => {
    const catalog = await readCatalog(session, publication);
    const added = catalog.tables.filter(
      ({ schema, name, kind, is_unlogged }) =>
        kind === 'r' && !is_unlogged && names.has(JSON.stringify([schema, name])),
    );
    if (publication !== null) return added.filter((table) => !isPublished(catalog, table));
    for (const { schema, name, has_key } of added)
      await publishTable(session, slot, { schema, name, follows: has_key ? 'all' : 'inserts' });
    return [];
  });
  if (published.ok)
    return publication !== null && published.value.length > 0
      ? notPublished(publication, published.value)
      : null;
  return {
    code: 'source',
    message: published.failure.message,
    table: null,
    statement: published.failure.statement,
  };
}

async function recordAdditions(host: FollowHost, followed: Followed, statements: readonly string[]) {
  const now = Date.now();
  const added = statements.map((statement) => ({
    id: randomUUID(),
    at: new Date(now).toISOString(),
    statement: statement.slice(0, ADDITION_MAX),
  }));
  const recent = followed.additions.filter(({ at }) => now - Date.parse(at) < REPORTED_FOR_MS);
  await host.postgres.query('UPDATE following SET additions = $2 WHERE branch_id = $1', [
    followed.branch_id,
    JSON.stringify([...recent, ...added].slice(-REPORTED_MAX)),
  ]);
  host.log('follow.added', { branch_id: followed.branch_id, statements: added.length });
}

/**
 * Compares the schemas, applies additions, and lets the branch follow, or stores what is in the way. The caller has the
 * lock of the branch.
 * @param reason why it was stopped, if the schemas are the same
 * @param appliesAll as `applyChanges`
 * @returns whether it follows
 */
export async function bringUpToSource(
  host: FollowHost,
  followed: Followed,
  reason: FollowProblem | null,
  appliesAll = false,
): Promise<boolean> {
  const compared = await compareWithSource(host, followed);
  if (!compared.ok || !compared.value.changes) {
    // The worker connects again by itself.
    if (reason) await storeProblem(host.postgres, followed.branch_id, reason);
    return reason === null;
  }
  const { changes, schema } = compared.value;
  const isSame = changes.statements.length + changes.unmodelled.length === 0;
  const problem =
    (await applyChanges(host, followed, { changes, schema }, appliesAll)) ?? (isSame ? reason : null);
  if (problem) return stop(host, followed, problem);
  await storeProblem(host.postgres, followed.branch_id, null);
  await enable(host, followed);
  const { widened, newTables } = changes;
  const differing = widened.length > 0 ? await differingTable(host, followed, widened) : null;
  if (differing) return stop(host, followed, wasComputed(differing));
  // Refused while it is disabled.
  if (newTables.length > 0 || followed.problem) await refresh(host, followed);
  return true;
}

async function stop(host: FollowHost, followed: Followed, problem: FollowProblem): Promise<false> {
  await disable(host, followed);
  await storeProblem(host.postgres, followed.branch_id, problem);
  host.log('follow.stopped', { branch_id: followed.branch_id, code: problem.code });
  return false;
}
