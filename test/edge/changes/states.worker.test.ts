import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import {
  allows,
  CHANGE_EVENTS,
  type ChangeEvent,
  changeState,
  STATES,
  TRANSITIONS,
} from '../../../edge/changes/states.ts';
import { type ChangeRow, changes } from '../../../edge/database/change-schema.ts';
import { CHANGE_STATES, type ChangeState } from '../../../edge/database/column-types.ts';
import { guardedWrite } from '../../../edge/database/guarded-write.ts';
import { changeRow } from '../../support/records/changes.ts';
import { startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

/** The states, by one letter or two. */
const LETTERS: Record<string, ChangeState> = {
  p: 'planned',
  r: 'rehearsed',
  a: 'approved',
  w: 'scheduled',
  g: 'applying',
  s: 'stopped',
  f: 'failed',
  d: 'applied',
  dd: 'applied_with_differences',
  u: 'undoing',
  uu: 'undone',
  c: 'closed',
};

/** The decided cells, by hand: the next state of each event, `-` for none, `<` for the one before the undo. */
const DECIDED = `
            p  r  a  w  g  s  f  d  dd u  uu c
  replan    p  p  p  -  -  p  p  -  -  -  -  -
  rehearse  r  r  a  -  -  -  -  -  -  -  -  -
  reject    p  p  p  -  -  -  -  -  -  -  -  -
  approve   -  a  a  -  -  -  -  -  -  -  -  -
  schedule  -  w  w  w  -  w  w  -  -  -  -  -
  begin     -  g  g  g  -  g  g  -  -  -  -  -
  finish    -  -  -  -  d  -  -  -  -  -  -  -
  differ    -  -  -  -  dd -  -  -  -  -  -  -
  stop      -  -  -  s  s  -  -  -  -  -  -  -
  fail      -  -  -  -  f  -  -  -  -  -  -  -
  undo      -  -  -  -  -  u  u  u  u  -  -  -
  undone    -  -  -  -  -  -  -  -  -  uu -  -
  keep      -  -  -  -  -  -  -  -  -  <  -  -
  close     c  c  c  c  -  c  c  -  -  -  -  c
`;

const [names = [], ...lines] = DECIDED.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));
const CELLS = lines.flatMap(([event = '', ...cells]) =>
  cells.map((cell, at) => ({
    event: event as ChangeEvent,
    state: LETTERS[names[at] ?? ''] as ChangeState,
    next: cell === '-' ? null : cell === '<' ? ('former' as const) : (LETTERS[cell] as ChangeState),
  })),
);

test('every cell is decided, and no other', () => {
  expect(CELLS).toHaveLength(CHANGE_EVENTS.length * CHANGE_STATES.length);
  for (const { event, state, next } of CELLS)
    expect(TRANSITIONS[event][state], `${event} of ${state}`).toBe(next);
});

const NOW = new Date(50_000);

async function store(state: ChangeState): Promise<ChangeRow> {
  const { columns } = STATES[state];
  const row = changeRow({
    state,
    dueAt: columns.dueAt === 'set' ? new Date(40_000) : null,
    formerState: columns.formerState === 'set' ? 'stopped' : null,
  });
  await db.insert(changes).values(row);
  return row;
}
const read = async (id: string) => (await db.select().from(changes).where(eq(changes.id, id)))[0];

test.each(CELLS)('$event of a change that is $state: $next', async ({ event, state, next }) => {
  const row = await store(state);
  const other = await store(state);
  const due = event === 'schedule' ? { dueAt: NOW } : {};
  const written = await guardedWrite(db, {
    decides: () => changeState(db, event, eq(changes.id, row.id), { ...due, updatedAt: NOW }),
    require: [allows(row.id, event)],
  });
  expect(await read(other.id)).toEqual(other);
  if (next === null) {
    expect(written).toEqual({ ok: false, failure: { code: 'CHANGE_STATE', fields: { state } } });
    return expect(await read(row.id)).toEqual(row);
  }
  const after = await read(row.id);
  const to = next === 'former' ? 'stopped' : next;
  expect(after).toEqual({
    ...row,
    state: to,
    updatedAt: NOW,
    dueAt: event === 'schedule' ? NOW : null,
    formerState: event === 'undo' ? state : null,
  });
  // The columns of the record in its new state.
  const { columns } = STATES[to];
  for (const column of ['dueAt', 'formerState'] as const)
    if (columns[column] !== 'either')
      expect(after?.[column] === null, column).toBe(columns[column] === 'null');
});
