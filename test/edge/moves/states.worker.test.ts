import { eq, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import type { MovePhase } from '../../../edge/database/column-types.ts';
import { moves } from '../../../edge/database/move-schema.ts';
import { projects } from '../../../edge/database/schema.ts';
import {
  BRANCH_EVENTS,
  BRANCH_STATES,
  changePhase,
  MOVE_EVENTS,
  nextState,
  PHASES,
  raiseAccess,
  TRANSITIONS,
} from '../../../edge/moves/states.ts';
import { insertProject, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

/**
 * The decided cells, by hand: the next phase of each event, `-` for none, and `!` where the access of the project gets a newer
 * revision.
 */
const DECIDED = `
           building   fenced     moved   undone
  fence    fenced!    -          -       -
  switch   -          moved      -       -
  undo     undone     undone!    -       -
  end      -          -          moved   undone
`;
/** What each phase has in its columns: `0` null, `1` a value, `?` either. */
const COLUMNS = `
           admittedAt follows fencedAt keptUntil sealedPassword awaySince
  building ?          ?       0        0         1              ?
  fenced   1          1       1        0         1              ?
  moved    1          1       1        1         ?              ?
  undone   ?          ?       ?        0         ?              ?
`;
const BRANCHES = `
           waiting built  loaded copied
  build    built   done   done   done
  load     early   loaded done   done
  swap     early   early  copied done
`;

function cellsOf(table: string) {
  const [names = [], ...lines] = table
    .trim()
    .split('\n')
    .map((line) => line.trim().split(/\s+/));
  return lines.flatMap(([row = '', ...cells]) =>
    cells.map((cell, at) => ({ row, column: names[at] ?? '', cell })),
  );
}

const CELLS = cellsOf(DECIDED).map(({ row, column, cell }) => ({
  event: row as (typeof MOVE_EVENTS)[number],
  phase: column as MovePhase,
  next: cell.replace('!', ''),
  raises: cell.endsWith('!'),
}));

test('every cell of the phases is decided, and no other', () => {
  expect(CELLS).toHaveLength(MOVE_EVENTS.length * Object.keys(PHASES).length);
  for (const { event, phase, next } of CELLS)
    expect(TRANSITIONS[event][phase] ?? '-', `${event} of ${phase}`).toBe(next);
});

const SINCE = new Date(1_000);
const NOW = new Date(50_000);
const fencedAt = (phase: MovePhase) => (phase === 'fenced' || phase === 'moved' ? SINCE : null);

async function store(phase: MovePhase) {
  const projectId = crypto.randomUUID();
  const jobId = crypto.randomUUID();
  await insertProject(db, 'h', projectId);
  await db.insert(moves).values({
    projectId,
    jobId,
    fromHostId: 'from',
    toHostId: 'to',
    phase,
    keyId: 'key',
    sealedPassword: 'sealed',
    admittedAt: 'then',
    follows: true,
    branches: [],
    awaySince: null,
    fencedAt: fencedAt(phase),
    keptUntil: phase === 'moved' ? SINCE : null,
    createdAt: SINCE,
    updatedAt: SINCE,
  });
  return { jobId, projectId, ...(await read(jobId, projectId)) };
}
async function read(jobId: string, projectId: string) {
  const [move] = await db.select().from(moves).where(eq(moves.jobId, jobId));
  const [project] = await db.select().from(projects).where(eq(projects.id, projectId));
  return { move, revision: project?.accessRevision ?? 0 };
}

test.each(CELLS)('$event of a move that is $phase: $next', async ({ event, phase, next, raises }) => {
  const before = await store(phase);
  const { jobId, projectId } = before;
  const statement = changePhase(db, event, { jobId, projectId, now: NOW });
  if (event === 'fence' || event === 'undo')
    await db.batch([raiseAccess(db, event, { jobId, projectId }), statement]);
  else await statement;
  const after = await read(jobId, projectId);
  expect(after.revision - before.revision).toBe(raises ? 1 : 0);
  if (next === '-') return expect(after.move).toEqual(before.move);
  expect(after.move).toEqual({
    ...before.move,
    phase: next,
    updatedAt: NOW,
    fencedAt: event === 'fence' ? NOW : before.move?.fencedAt,
    // A day after the switch.
    keptUntil: event === 'switch' ? new Date(50_000 + 86_400_000) : before.move?.keptUntil,
    sealedPassword: event === 'end' ? null : 'sealed',
  });
});

test('a condition of the caller holds for the phase and for the access', async () => {
  const { jobId, projectId, move, revision } = await store('building');
  const change = { jobId, projectId, now: NOW, onlyIf: sql`1 = 0` };
  await db.batch([raiseAccess(db, 'fence', change), changePhase(db, 'fence', change)]);
  expect(await read(jobId, projectId)).toEqual({ move, revision });
});

test('an event of one move leaves the move of another project', async () => {
  const one = await store('building');
  const other = await store('building');
  await changePhase(db, 'fence', { ...one, now: NOW });
  expect((await read(other.jobId, other.projectId)).move).toEqual(other.move);
});

test.each(cellsOf(COLUMNS))('a move that is $row has $column: $cell', ({ row, column, cell }) => {
  const said = { '0': 'null', '1': 'set', '?': 'either' }[cell];
  const { columns } = PHASES[row as MovePhase];
  expect(columns[column as keyof typeof columns]).toBe(said);
  expect(cellsOf(COLUMNS)).toHaveLength(Object.keys(PHASES).length * Object.keys(columns).length);
});

test.each(cellsOf(BRANCHES))('$row of a branch that is $column: $cell', ({ row, column, cell }) => {
  const event = row as (typeof BRANCH_EVENTS)[number];
  const state = column as keyof typeof BRANCH_STATES.build;
  expect(BRANCH_STATES[event][state]).toBe(cell);
  const next = () => nextState(event, { name: 'pr-1', state });
  if (cell === 'early') expect(next).toThrow(`pr-1 is ${state}, so a move cannot ${event} it`);
  else expect(next()).toBe(cell === 'done' ? null : cell);
  expect(cellsOf(BRANCHES)).toHaveLength(BRANCH_EVENTS.length * Object.keys(BRANCH_STATES.build).length);
});
