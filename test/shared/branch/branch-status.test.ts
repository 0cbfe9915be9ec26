import { expect, test } from 'vitest';
import {
  BRANCH_STATUSES,
  BRANCH_TRANSITIONS,
  statusesAllowing,
} from '../../../shared/branch/branch-status.ts';

/** Every cell of the table, written out once more: what each status becomes, `-` where the event is refused. */
const CELLS = `
           proved  gave_up expire  extend  delete  delete_project dropped
  creating active  failed  -       -       deleted deleting       -
  active   active  -       expired active  deleted deleting       failed
  expired  -       -       expired active  deleted deleting       failed
  deleting -       -       -       -       -       deleting       deleted
  deleted  -       -       -       -       -       -              deleted
  failed   -       failed  -       -       deleted deleting       failed`;

const [events = [], ...rows] = CELLS.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));

test.each(rows.flatMap(([from, ...to]) => events.map((event, i) => [from, event, to[i]])))(
  '%s + %s → %s',
  (from, event, to) => {
    const table: Record<string, Record<string, string | null>> = BRANCH_TRANSITIONS;
    expect(table[from ?? '']?.[event ?? ''] ?? '-').toBe(to);
  },
);

test('has a row for every status, and lists where an event is possible', () => {
  expect(rows.map(([from]) => from)).toEqual([...BRANCH_STATUSES]);
  expect(statusesAllowing('delete')).toEqual(['creating', 'active', 'expired', 'failed']);
});
