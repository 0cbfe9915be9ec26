import { setTimeout as sleep } from 'node:timers/promises';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Session } from '../postgres/connect.ts';
import { LOCK_NOT_AVAILABLE, sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { OnProgress } from '../process/progress.ts';
import { type CopiedTable, listTables, tableName } from '../transfer/copy-rows.ts';
import { compareTable, followedTables, hasSchemaOfCopy, OTHER_SCHEMA } from '../transfer/cut-over.ts';
import { type FollowHost, withFollowed, withOwners } from '../transfer/followed-session.ts';
import {
  type Followed,
  readSubscription,
  requireFollowed,
  type Subscription,
} from '../transfer/following.ts';
import { finding, Refused, short } from '../transfer/source-address.ts';
import { findingOf, inSource, openSnapshotSession } from '../transfer/source-session.ts';
import { flushWal, hasApplied } from '../transfer/source-slot.ts';

/**
 * The comparison of a move, while the source is written to. A table is locked against writes there until its changes are
 * applied here, which takes a fraction of a second; then both sides are read as of that commit.
 */

/** A table is locked only while what was just written there has arrived within this time. */
const CAUGHT_UP = { within: 200, every: 4 };
/** Clients that write wait meanwhile. */
const LOCK_WITHIN_MS = 300;
const APPLIED = { within: 400, every: 4 };
const SESSION_WITHIN_MS = 10_000;
/** A table is read. */
const COMPARED_WITHIN_MS = 6 * 3_600_000;
/** A table that is written to in long transactions is tried again. */
const TRIES = 60;
const TRY_AGAIN_MS = 1_000;

type Comparison = MethodResult<'move.compare'>;

/** @throws HostError INVALID_CALL for a branch that follows nothing, HOST_BUSY. What differs is a finding */
export const compareHosts = (
  host: FollowHost,
  params: Params<'move.compare'>,
  onProgress?: OnProgress,
): Promise<Comparison> =>
  withFollowed(host, params, async (session) => {
    const followed = await requireFollowed(session, params.branch_id);
    const subscription = await readSubscription(session, followed);
    if (!subscription) throw new HostError('INVALID_CALL', 'the branch has no subscription');
    if (followed.problem)
      return { compared: null, findings: [finding('rows', followed.problem.message, { path: '' })] };
    try {
      return { compared: await compareAll(host, followed, subscription, onProgress), findings: [] };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return { compared: null, findings: [error.finding] };
    }
  });

async function compareAll(
  host: FollowHost,
  followed: Followed,
  subscription: Subscription,
  onProgress: OnProgress | undefined,
): Promise<NonNullable<Comparison['compared']>> {
  const names = await followedTables(host, followed);
  const bounds = { within: SESSION_WITHIN_MS };
  const listed = await inSource(host.settings, subscription.source, bounds, async ({ session }) =>
    (await hasSchemaOfCopy(followed, session)) ? listTables(session, names) : null,
  );
  if (!listed.ok) throw new Refused(listed.failure);
  if (!listed.value) throw new Refused(OTHER_SCHEMA);
  let rows = 0;
  for (const [index, table] of listed.value.entries()) {
    rows += await compareOne(host, followed, subscription, table);
    onProgress?.((index + 1) / listed.value.length);
  }
  return { tables: listed.value.length, rows };
}

/** @returns the rows of the table */
async function compareOne(
  host: FollowHost,
  followed: Followed,
  subscription: Subscription,
  table: CopiedTable,
): Promise<number> {
  const { settings } = host;
  const { source } = subscription;
  for (let tries = 1; ; tries += 1) {
    const theirs = await openSnapshotSession(settings, source, null, 'rows').catch((error) => {
      throw error instanceof Error ? new Refused(findingOf(error)) : error;
    });
    try {
      const compare = async (ours: Session) => {
        await ours.query('BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY');
        if (!(await atOneCommit(host, subscription, table, [theirs.session, ours]))) return null;
        return compareTable(theirs.session, ours, table);
      };
      const compared = await withOwners(host, followed, (inOwners) => inOwners(compare), COMPARED_WITHIN_MS);
      if (compared) return compared.rows;
    } finally {
      theirs.end();
    }
    if (tries === TRIES) throw new Refused(notComparable(table));
    await sleep(TRY_AGAIN_MS);
  }
}

const notComparable = (table: CopiedTable) =>
  finding(
    'rows',
    `The rows of ${short(tableName(table))} could not be compared: it is written to in long transactions, or its changes arrive too late.`,
    { path: '', object: short(tableName(table)) },
  );

/**
 * Reads both sides for the first time while nobody writes to the table and every change of it is applied here.
 * @param theirs a transaction without a snapshot
 * @returns false if that was not so in time
 */
async function atOneCommit(
  { settings, postgres }: FollowHost,
  { source, oid }: Subscription,
  table: CopiedTable,
  [theirs, ours]: readonly [Session, Session],
): Promise<boolean> {
  const isApplied = async (time: typeof APPLIED) => {
    const lsn = await flushWal(theirs, source.database);
    return (await pollUntil(() => hasApplied(postgres, oid, lsn), time)) === true;
  };
  const bounds = { within: SESSION_WITHIN_MS, mode: 'change' } as const;
  const done = await inSource(settings, source, bounds, async ({ session }) => {
    if (!(await isApplied(CAUGHT_UP))) return false;
    await session.query(`BEGIN; SET LOCAL lock_timeout = ${LOCK_WITHIN_MS}`);
    try {
      await session.query(`LOCK TABLE ONLY ${tableName(table)} IN SHARE MODE`);
    } catch (error) {
      if (sqlState(error) !== LOCK_NOT_AVAILABLE) throw error;
      return false;
    }
    if (!(await isApplied(APPLIED))) return false;
    await Promise.all([theirs.query('SELECT'), ours.query('SELECT')]);
    return true;
  });
  if (!done.ok) throw new Refused(done.failure);
  return done.value;
}
