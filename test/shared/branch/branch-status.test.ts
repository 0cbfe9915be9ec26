import { expect, test } from 'vitest';
import {
  BRANCH_STATUSES,
  BRANCH_TRANSITIONS,
  statusesAllowing,
} from '../../../shared/branch/branch-status.ts';

/** An independent copy of the table: the new status, or `-` where the event is refused. */
const CELLS = `
           proved  gave_up restore  not_restored expire  extend  delete  retire  delete_project lost    found
  creating active  failed  -        deleted      -       -       deleted -       deleting       -       -
  active   -       -       -        -            expired active  deleted -       deleting       failed  -
  expired  -       -       -        -            -       active  deleted deleted deleting       failed  -
  deleting -       -       -        -            -       -       -       -       -              -       -
  deleted  -       -       creating -            -       -       -       -       -              -       -
  failed   -       -       -        -            -       -       deleted -       deleting       -       active`;

const [events = [], ...rows] = CELLS.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));

test.each(rows.flatMap(([from, ...to]) => events.map((event, i) => [from, event, to[i]])))(
  '%s + %s → %s',
  (from, event, to) => {
    const table: Record<string, { from: readonly string[]; to: string }> = BRANCH_TRANSITIONS;
    const transition = table[event ?? ''];
    expect(transition?.from.includes(from ?? '') ? transition.to : '-').toBe(to);
  },
);

test('the table covers every status and every event', () => {
  expect(rows.map(([from]) => from)).toEqual([...BRANCH_STATUSES]);
  expect(events).toEqual(Object.keys(BRANCH_TRANSITIONS));
  expect(statusesAllowing('delete')).toEqual(['creating', 'active', 'expired', 'failed']);
});
