import { and, inArray, type SQL, sql } from 'drizzle-orm';
import { type BranchHold, FOLLOW_RECORD_STATES } from '../database/column-types.ts';
import type { Database } from '../database/database.ts';
import { type FollowRow, follows } from '../database/source-schema.ts';

/**
 * Every state of what a project follows, the events that change it, and the hold of `main` in each
 * (docs/decisions/following.md). An import has the first state only: it needs no record, and ends in `none`.
 */

export type FollowState = FollowRow['state'];
/** `none`: the project has no record. */
export type SourceState = FollowState | 'none';

/**
 * - `start`: a source is copied into `main`.
 * - `follow`: the copy is in place, and the host applies the changes of the source.
 * - `fail`: the start was undone. `forget`: as well, by a client, and nothing is left at the source.
 * - `run`, `halt`: the host reports that it applies changes, or that a problem stopped it.
 * - `cut over`: `main` takes over from the source.
 * - `stop`: `main` keeps the data that it has.
 */
export const FOLLOW_EVENTS = [
  'start',
  'follow',
  'fail',
  'forget',
  'run',
  'halt',
  'cut over',
  'stop',
] as const;
export type FollowEvent = (typeof FOLLOW_EVENTS)[number];

/** The next state; null: the event writes nothing. */
export const TRANSITIONS: Record<FollowEvent, Record<SourceState, SourceState | null>> = {
  start: {
    none: 'copying',
    copying: null,
    following: null,
    stopped: null,
    // The record of what is over is replaced.
    cut_over: 'copying',
    failed: 'copying',
  },
  follow: {
    none: null,
    copying: 'following',
    following: null,
    stopped: null,
    cut_over: null,
    failed: null,
  },
  fail: { none: null, copying: 'failed', following: null, stopped: null, cut_over: null, failed: null },
  forget: { none: null, copying: 'none', following: null, stopped: null, cut_over: null, failed: null },
  // A report that is late must not begin anything again.
  run: {
    none: null,
    copying: null,
    following: 'following',
    stopped: 'following',
    cut_over: null,
    failed: null,
  },
  halt: {
    none: null,
    copying: null,
    following: 'stopped',
    stopped: 'stopped',
    cut_over: null,
    failed: null,
  },
  'cut over': {
    none: null,
    copying: null,
    following: 'cut_over',
    // A report that arrives while the host cuts over does not keep it from being recorded.
    stopped: 'cut_over',
    cut_over: null,
    failed: null,
  },
  stop: { none: null, copying: null, following: 'none', stopped: 'none', cut_over: null, failed: null },
};

/** Hold of `main`; null: its clients may write. */
export const HOLDS: Record<SourceState, BranchHold | null> = {
  none: null,
  copying: 'import',
  following: 'following',
  stopped: 'following',
  cut_over: null,
  failed: null,
};

/** The states that an event changes or confirms. */
export const statesBefore = (event: FollowEvent): FollowState[] =>
  FOLLOW_RECORD_STATES.filter((state) => TRANSITIONS[event][state] !== null);

/** The states in which the host follows, or can continue. */
export const LIVE_STATES = FOLLOW_RECORD_STATES.filter((state) => HOLDS[state] === 'following');

export const isLive = ({ state }: Pick<FollowRow, 'state'>): boolean => LIVE_STATES.includes(state);

/** Changes the records that `which` selects, where the table has a next state. */
export function changeState(
  db: Database,
  event: Exclude<FollowEvent, 'start' | 'forget' | 'stop'>,
  which: SQL | undefined,
  change: Pick<FollowRow, 'updatedAt'> & { [K in keyof FollowRow]?: FollowRow[K] | SQL },
) {
  const before = statesBefore(event);
  const next = before.map((state) => sql`when ${state} then ${TRANSITIONS[event][state]}`);
  return db
    .update(follows)
    .set({ ...change, state: sql`case ${follows.state} ${sql.join(next, sql` `)} else ${follows.state} end` })
    .where(and(which, inArray(follows.state, before)));
}

/** Removes the records that `which` selects, where the table leads to `none`. */
export const removeRecord = (db: Database, event: 'forget' | 'stop', which: SQL | undefined) =>
  db.delete(follows).where(and(which, inArray(follows.state, statesBefore(event))));
