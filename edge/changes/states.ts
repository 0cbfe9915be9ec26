import { and, inArray, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { type ChangeRow, changes } from '../database/change-schema.ts';
import { CHANGE_STATES, type ChangeState } from '../database/column-types.ts';
import { type Database, isThere } from '../database/database.ts';
import type { Requirement } from '../database/guarded-write.ts';

/**
 * Every state of a change of `main`, the events that change it, and what its record has in each
 * (docs/decisions/changes.md). The state is written here only, by one statement that names the states before it.
 */

/**
 * - `replan`: the plan has other statements, or begins with another schema.
 * - `rehearse`: every statement of the plan ran on a clone. `reject`: one did not.
 * - `approve`: the plan has the approvals that it needs.
 * - `schedule`: it is to be applied later.
 * - `begin`: its statements run in `main`.
 * - `finish`: all of them ran, and `main` has the schema of the rehearsed clone. `differ`: or another one.
 * - `stop`: its application has ended early, and can continue. `fail`: PostgreSQL refused a statement.
 * - `undo`, `undone`, `keep`: `main` goes back to the safety snapshot; it did; or it stays as it is.
 * - `close`: a client has closed it.
 */
export const CHANGE_EVENTS = [
  'replan',
  'rehearse',
  'reject',
  'approve',
  'schedule',
  'begin',
  'finish',
  'differ',
  'stop',
  'fail',
  'undo',
  'undone',
  'keep',
  'close',
] as const;
export type ChangeEvent = (typeof CHANGE_EVENTS)[number];

/** `former`: the state before the undo. Null: the event cannot happen. */
type Next = ChangeState | 'former' | null;

const NEVER: Record<ChangeState, Next> = {
  planned: null,
  rehearsed: null,
  approved: null,
  scheduled: null,
  applying: null,
  stopped: null,
  failed: null,
  applied: null,
  applied_with_differences: null,
  undoing: null,
  undone: null,
  closed: null,
};

export const TRANSITIONS: Record<ChangeEvent, Record<ChangeState, Next>> = {
  // Once a statement was applied, the plan stays (`reservePlan`).
  replan: {
    ...NEVER,
    planned: 'planned',
    rehearsed: 'planned',
    approved: 'planned',
    stopped: 'planned',
    failed: 'planned',
  },
  rehearse: { ...NEVER, planned: 'rehearsed', rehearsed: 'rehearsed', approved: 'approved' },
  reject: { ...NEVER, planned: 'planned', rehearsed: 'planned', approved: 'planned' },
  approve: { ...NEVER, rehearsed: 'approved', approved: 'approved' },
  schedule: {
    ...NEVER,
    rehearsed: 'scheduled',
    approved: 'scheduled',
    scheduled: 'scheduled',
    stopped: 'scheduled',
    failed: 'scheduled',
  },
  begin: {
    ...NEVER,
    rehearsed: 'applying',
    approved: 'applying',
    scheduled: 'applying',
    stopped: 'applying',
    failed: 'applying',
  },
  finish: { ...NEVER, applying: 'applied' },
  differ: { ...NEVER, applying: 'applied_with_differences' },
  // A scheduled change that is due may not be allowed to begin.
  stop: { ...NEVER, applying: 'stopped', scheduled: 'stopped' },
  fail: { ...NEVER, applying: 'failed' },
  undo: {
    ...NEVER,
    stopped: 'undoing',
    failed: 'undoing',
    applied: 'undoing',
    applied_with_differences: 'undoing',
  },
  undone: { ...NEVER, undoing: 'undone' },
  keep: { ...NEVER, undoing: 'former' },
  close: {
    ...NEVER,
    planned: 'closed',
    rehearsed: 'closed',
    approved: 'closed',
    scheduled: 'closed',
    stopped: 'closed',
    failed: 'closed',
    closed: 'closed',
  },
};

type Presence = 'null' | 'set' | 'either';

interface Form {
  /** Open changes count against the limit of the project. */
  isOpen: boolean;
  /** A job changes `main`, so no other change of the project may. */
  isAtWork: boolean;
  columns: Record<'rehearsal' | 'options' | 'dueAt' | 'formerState' | 'jobId', Presence>;
}

const before = (rehearsal: Presence, more: Partial<Form['columns']> = {}): Form => ({
  isOpen: true,
  isAtWork: false,
  columns: { rehearsal, options: 'null', dueAt: 'null', formerState: 'null', jobId: 'either', ...more },
});
const after = ({
  isOpen = false,
  isAtWork = false,
  ...more
}: Partial<Form> & Partial<Form['columns']> = {}): Form => ({
  isOpen,
  isAtWork,
  columns: { rehearsal: 'set', options: 'set', dueAt: 'null', formerState: 'null', jobId: 'set', ...more },
});

export const STATES: Record<ChangeState, Form> = {
  planned: before('either', { options: 'either' }),
  rehearsed: before('set', { options: 'either' }),
  approved: before('set', { options: 'either' }),
  scheduled: before('set', { options: 'set', dueAt: 'set' }),
  applying: after({ isOpen: true, isAtWork: true }),
  // One that was due and could not begin has no job of its own.
  stopped: after({ isOpen: true, jobId: 'either' }),
  failed: after({ isOpen: true }),
  applied: after(),
  applied_with_differences: after(),
  undoing: after({ isOpen: true, isAtWork: true, formerState: 'set' }),
  undone: after({ formerState: 'either' }),
  closed: after({ rehearsal: 'either', options: 'either', jobId: 'either' }),
};

const statesWith = (test: (form: Form) => boolean): ChangeState[] =>
  CHANGE_STATES.filter((state) => test(STATES[state]));

/** Changes that count against the limit of a project; those with a job that changes `main`; and open ones without. */
export const OPEN = statesWith(({ isOpen }) => isOpen);
export const AT_WORK = statesWith(({ isAtWork }) => isAtWork);
export const AT_REST = statesWith(({ isOpen, isAtWork }) => isOpen && !isAtWork);

export const statesBefore = (event: ChangeEvent): ChangeState[] =>
  CHANGE_STATES.filter((state) => TRANSITIONS[event][state] !== null);

/** The change is in a state in which the event can happen; otherwise CHANGE_STATE with its state. */
export const allows = (id: string, event: ChangeEvent): Requirement => {
  const state = sql<string>`(select state from ${changes} where id = ${id})`;
  const failure: Failure = { code: 'CHANGE_STATE', fields: { state } };
  return [isThere(changes, and(sql`id = ${id}`, inArray(changes.state, statesBefore(event)))), failure];
};

/** The statement of an event: it changes no row in a state where the table has none. */
export function changeState(
  db: Database,
  event: ChangeEvent,
  which: SQL | undefined,
  change: { [K in keyof ChangeRow]?: ChangeRow[K] | SQL } & Pick<ChangeRow, 'updatedAt'>,
) {
  const from = statesBefore(event);
  const next = from.map((state) => {
    const to = TRANSITIONS[event][state];
    return sql`when ${state} then ${to === 'former' ? changes.formerState : to}`;
  });
  return db
    .update(changes)
    .set({
      ...change,
      formerState: event === 'undo' ? changes.state : null,
      ...(event !== 'schedule' && { dueAt: null }),
      state: sql`case ${changes.state} ${sql.join(next, sql` `)} else ${changes.state} end`,
    } as never)
    .where(and(which, inArray(changes.state, from)));
}
