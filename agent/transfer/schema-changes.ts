import { randomUUID } from 'node:crypto';
import type { FollowProblem } from '../../shared/protocol/follow.ts';
import { catalogQuery } from '../difference/schema/compare-schemas.ts';
import { runInThread } from '../difference/schema/comparison-thread.ts';
import type { SourceChange } from '../difference/schema/copied-schema.ts';
import { identifier } from '../postgres/connect.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { pollUntil } from '../process/loops.ts';
import {
  type CopiedTable,
  listTables,
  makeAll,
  missingRows,
  presentRows,
  readSample,
  type Sample,
  tableName,
} from './copy-rows.ts';
import { asOwners, type FollowHost, inFollowed } from './followed-session.ts';
import { disable, enable, type Followed, readSubscription, refresh, storeProblem } from './following.ts';
import { Refused, short } from './source-address.ts';
import { isPublished, readCatalog, type TableRow } from './source-catalog.ts';
import { inSource } from './source-session.ts';
import { hasApplied, publishTable, writtenLsn } from './source-slot.ts';

/** What has changed in the schema of a source since it was copied, and what becomes of that here. */

const COMPARE_WITHIN_MS = 30_000;

/** @returns null if the source cannot be read */
export async function readSourceChanges(
  host: FollowHost,
  followed: Followed,
): Promise<SourceChange[] | null> {
  const subscription = await readSubscription(host.postgres, followed);
  if (!subscription) return null;
  const { source, tls } = subscription;
  const compared = await inSource(
    host.settings,
    source,
    COMPARE_WITHIN_MS,
    async ({ session: there }) => {
      await there.query('BEGIN');
      return inFollowed(host, followed, 'read', async (here) => {
        await here.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY');
        const queries = { before: catalogQuery(here), after: catalogQuery(there) };
        const task = { followed: followed.tables, sameRoles: followed.print !== null };
        return runInThread(task, queries, new AbortController().signal, COMPARE_WITHIN_MS);
      });
    },
    { tls },
  );
  if (!compared.ok) return null;
  const known = new Set(followed.known);
  return (compared.value.followed ?? []).filter(({ statement }) => !known.has(statement));
}

const STATEMENTS_MAX = 50;
const ADDITION_MAX = 4_000;
/** Additions are reported for as long as the gateway may be away for an upgrade. */
const REPORTED_FOR_MS = 3_600_000;
const REPORTED_MAX = 50;

const differs = (changes: readonly SourceChange[]): FollowProblem => ({
  code: 'schema',
  message:
    'The schema of the source has changed by more than an addition. Resume with apply_changes to run the statements here, or undo the change at the source and resume.',
  table: null,
  statement: changes
    .slice(0, STATEMENTS_MAX)
    .map(({ statement }) => `${statement.slice(0, ADDITION_MAX)};`)
    .join('\n'),
});

const COLUMN = /^ALTER TABLE (.+) (ADD|DROP|ALTER) COLUMN /;

/**
 * Names of tables that would get columns whose values at the source are in no change: new ones with a computed default,
 * renamed ones, and those of another type.
 */
function tablesWithLostValues(changes: readonly SourceChange[]): string[] {
  const columns = changes.flatMap(({ statement, isAddition, isConversion }) => {
    const [, table = '', act = ''] = COLUMN.exec(statement) ?? [];
    return table ? [{ table, act, isAddition, isConversion }] : [];
  });
  const dropped = new Set(columns.flatMap(({ table, act }) => (act === 'DROP' ? [table] : [])));
  const lost = columns.filter(
    ({ table, act, isAddition, isConversion }) =>
      isConversion || (act === 'ADD' && (!isAddition || dropped.has(table))),
  );
  return [...new Set(lost.map(({ table }) => table))];
}

const losesValues = (tables: readonly string[], changes: readonly SourceChange[]): FollowProblem => ({
  ...differs(changes),
  message:
    'The values of columns that are new, renamed or of another type are in no change of the source, so they cannot be applied here. Undo the change at the source and resume, or stop following and begin again.',
  table: short(tables.join(', ')),
});

/** The error of the driver for a statement that the server has not ended in time. */
const isTimeout = (error: unknown) => error instanceof Error && error.message === 'Query read timeout';

const refusedHere = (changes: readonly SourceChange[], error: unknown): FollowProblem => ({
  ...differs(changes),
  message: `${error instanceof Refused ? error.finding.message : 'A statement of the schema takes too long here.'} Undo the change at the source and resume, or stop following and begin again.`,
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
  const { source, tls, oid } = subscription;
  const within = COMPARE_WITHIN_MS + COMPARISONS * LEVEL_WITHIN_MS;
  const compared = await inSource(
    host.settings,
    source,
    within,
    async ({ session: there }) => {
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
    },
    { tls },
  );
  return compared.ok ? compared.value : null;
}

/**
 * Brings the schema of a branch to that of its source, if that takes additions only. The caller has the lock of the
 * branch, and the subscription is disabled or waits for it.
 * @param appliesAll whether every change is applied, as a person has decided
 * @returns what is in the way; null if the branch can follow
 */
async function applyAdditions(
  host: FollowHost,
  followed: Followed,
  changes: readonly SourceChange[],
  appliesAll: boolean,
): Promise<FollowProblem | null> {
  if (!appliesAll && changes.some(({ isAddition }) => !isAddition)) return differs(changes);
  if (changes.length === 0) return null;
  const lost = tablesWithLostValues(changes);
  if (lost.length > 0) return losesValues(lost, changes);
  try {
    await asOwners(host, followed, (session) =>
      makeAll(
        session,
        changes.map(({ statement }) => statement),
      ),
    );
  } catch (error) {
    if (!(error instanceof Refused) && sqlState(error) === undefined && !isTimeout(error)) throw error;
    return refusedHere(changes, error);
  }
  await recordAdditions(host, followed, changes);
  const tables = changes.flatMap(({ newTable }) => (newTable ? [newTable] : []));
  return tables.length > 0 ? publishTables(host, followed, tables) : null;
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
  const { source, tls } = subscription;
  const names = new Set(tables.map((name) => JSON.stringify(name)));
  const { publication, slot } = followed;
  const published = await inSource(
    host.settings,
    source,
    COMPARE_WITHIN_MS,
    async ({ session }) => {
      const catalog = await readCatalog(session, publication);
      const added = catalog.tables.filter(
        ({ schema, name, kind, is_unlogged }) =>
          kind === 'r' && !is_unlogged && names.has(JSON.stringify([schema, name])),
      );
      if (publication !== null) return added.filter((table) => !isPublished(catalog, table));
      for (const { schema, name, has_key } of added)
        await publishTable(session, slot, { schema, name, follows: has_key ? 'all' : 'inserts' });
      return [];
    },
    { mode: 'change', tls },
  );
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

async function recordAdditions(host: FollowHost, followed: Followed, changes: readonly SourceChange[]) {
  const now = Date.now();
  const added = changes.map(({ statement }) => ({
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
 * @param appliesAll as `applyAdditions`
 * @returns whether it follows
 */
export async function bringUpToSource(
  host: FollowHost,
  followed: Followed,
  reason: FollowProblem | null,
  appliesAll = false,
): Promise<boolean> {
  const changes = await readSourceChanges(host, followed);
  if (changes === null) {
    // The worker connects again by itself.
    if (reason) await storeProblem(host.postgres, followed.branch_id, reason);
    return reason === null;
  }
  const problem =
    (await applyAdditions(host, followed, changes, appliesAll)) ?? (changes.length === 0 ? reason : null);
  if (problem) return stop(host, followed, problem);
  await storeProblem(host.postgres, followed.branch_id, null);
  await enable(host, followed);
  const widened = changes.flatMap(({ widened: table }) => (table ? [table] : []));
  const differing = widened.length > 0 ? await differingTable(host, followed, widened) : null;
  if (differing) return stop(host, followed, wasComputed(differing));
  // Refused while it is disabled.
  if (changes.some(({ newTable }) => newTable) || followed.problem) await refresh(host, followed);
  return true;
}

async function stop(host: FollowHost, followed: Followed, problem: FollowProblem): Promise<false> {
  await disable(host, followed);
  await storeProblem(host.postgres, followed.branch_id, problem);
  host.log('follow.stopped', { branch_id: followed.branch_id, code: problem.code });
  return false;
}
