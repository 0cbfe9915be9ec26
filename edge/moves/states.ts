import { and, eq, inArray, type SQL, sql } from 'drizzle-orm';
import { nextAccessRevision } from '../access/send-access.ts';
import type { MovePhase, MovingBranch } from '../database/column-types.ts';
import { type Database, isThere } from '../database/database.ts';
import { KEPT_MS, type MoveRow, moves } from '../database/move-schema.ts';

/**
 * Every phase of a move and every state of its branches, with the events that change them (docs/decisions/moves.md). The
 * phase is changed here only, by one statement that names the phases before it, so a switch and an undoing exclude each other.
 */

/**
 * - `fence`: both hosts close the project.
 * - `switch`: the record of the project names the new host.
 * - `undo`: the former host serves the project again.
 * - `end`: the job has ended, and nothing needs the login on the former host any more.
 */
export const MOVE_EVENTS = ['fence', 'switch', 'undo', 'end'] as const;
export type MoveEvent = (typeof MOVE_EVENTS)[number];

/** The next phase; null: the event writes nothing. */
type Next = MovePhase | null;

export const TRANSITIONS: Record<MoveEvent, Record<MovePhase, Next>> = {
  // A repeated attempt keeps the time of the first fence, which bounds how long clients wait.
  fence: { building: 'fenced', fenced: null, moved: null, undone: null },
  switch: { building: null, fenced: 'moved', moved: null, undone: null },
  undo: { building: 'undone', fenced: 'undone', moved: null, undone: null },
  end: { building: null, fenced: null, moved: 'moved', undone: 'undone' },
};

type BranchState = MovingBranch['state'];
type Presence = 'null' | 'set' | 'either';

interface Phase {
  /** The host that serves the clients of the project. */
  serves: 'former' | 'none' | 'new';
  branches: readonly BranchState[];
  columns: Record<
    'admittedAt' | 'follows' | 'fencedAt' | 'keptUntil' | 'sealedPassword' | 'awaySince',
    Presence
  >;
  /** The undo of the phase; null: there is none, and every failure is retried. */
  undo: {
    /** The former host was closed, and opens with a newer revision of the access. */
    reopens: boolean;
  } | null;
}

export const PHASES: Record<MovePhase, Phase> = {
  building: {
    serves: 'former',
    branches: ['waiting', 'built', 'loaded', 'copied'],
    columns: {
      admittedAt: 'either',
      follows: 'either',
      fencedAt: 'null',
      keptUntil: 'null',
      sealedPassword: 'set',
      awaySince: 'either',
    },
    undo: { reopens: false },
  },
  fenced: {
    serves: 'none',
    branches: ['copied'],
    columns: {
      admittedAt: 'set',
      follows: 'set',
      fencedAt: 'set',
      keptUntil: 'null',
      sealedPassword: 'set',
      awaySince: 'either',
    },
    undo: { reopens: true },
  },
  moved: {
    serves: 'new',
    branches: ['copied'],
    columns: {
      admittedAt: 'set',
      follows: 'set',
      fencedAt: 'set',
      keptUntil: 'set',
      sealedPassword: 'either',
      awaySince: 'either',
    },
    undo: null,
  },
  undone: {
    serves: 'former',
    branches: ['waiting', 'built', 'loaded', 'copied'],
    columns: {
      admittedAt: 'either',
      follows: 'either',
      fencedAt: 'either',
      keptUntil: 'null',
      sealedPassword: 'either',
      awaySince: 'either',
    },
    // A repeated attempt of the undoing.
    undo: { reopens: false },
  },
};

const phasesWith = (test: (phase: MovePhase) => boolean): MovePhase[] =>
  (Object.keys(PHASES) as MovePhase[]).filter(test);

interface Change {
  jobId: string;
  projectId: string;
  now: Date;
  /** Further conditions, in one statement with those of the table. */
  onlyIf?: SQL | undefined;
}

const isIn = (jobId: string, phases: MovePhase[], onlyIf: SQL | undefined) =>
  and(eq(moves.jobId, jobId), inArray(moves.phase, phases), onlyIf);

/** Columns that an event writes beside the phase. */
const written = (event: MoveEvent, now: Date): Partial<MoveRow> => ({
  ...(event === 'fence' && { fencedAt: now }),
  ...(event === 'switch' && { keptUntil: new Date(now.getTime() + KEPT_MS) }),
  ...(event === 'end' && { sealedPassword: null }),
});

/** The statement of an event: it changes no row in a phase where the table has none. */
export function changePhase(db: Database, event: MoveEvent, { jobId, now, onlyIf }: Change) {
  const cells = TRANSITIONS[event];
  const before = phasesWith((phase) => cells[phase] !== null);
  const next = before.map((phase) => sql`when ${phase} then ${cells[phase]}`);
  return db
    .update(moves)
    .set({
      ...written(event, now),
      phase: sql`case ${moves.phase} ${sql.join(next, sql` `)} else ${moves.phase} end`,
      updatedAt: now,
    })
    .where(isIn(jobId, before, onlyIf));
}

/** The newer access that closes or opens the former host; goes before the transition, in one batch. */
export function raiseAccess(
  db: Database,
  event: 'fence' | 'undo',
  { jobId, projectId, onlyIf }: Omit<Change, 'now'>,
) {
  const before = phasesWith((phase) =>
    event === 'fence' ? TRANSITIONS.fence[phase] !== null : PHASES[phase].undo?.reopens === true,
  );
  return nextAccessRevision(db, projectId, isThere(moves, isIn(jobId, before, onlyIf)));
}

/**
 * - `build`: the branch exists on the new host, empty and closed.
 * - `load`: a copy of the branch is complete beside it.
 * - `swap`: the copy has taken its place.
 */
export const BRANCH_EVENTS = ['build', 'load', 'swap'] as const;
export type BranchEvent = (typeof BRANCH_EVENTS)[number];

/** The next state; `done`: the step has nothing to do; `early`: a step before it is missing, which is an error. */
export const BRANCH_STATES: Record<BranchEvent, Record<BranchState, BranchState | 'done' | 'early'>> = {
  build: { waiting: 'built', built: 'done', loaded: 'done', copied: 'done' },
  load: { waiting: 'early', built: 'loaded', loaded: 'done', copied: 'done' },
  swap: { waiting: 'early', built: 'early', loaded: 'copied', copied: 'done' },
};

/** The state after the event; null if there is nothing to do. @throws Error for a branch that is not ready */
export function nextState(event: BranchEvent, { name, state }: Pick<MovingBranch, 'name' | 'state'>) {
  const next = BRANCH_STATES[event][state];
  if (next === 'early') throw new Error(`${name} is ${state}, so a move cannot ${event} it`);
  return next === 'done' ? null : next;
}
