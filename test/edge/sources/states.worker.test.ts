import { eq } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { projectBranches } from '../../../edge/database/schema.ts';
import { follows } from '../../../edge/database/source-schema.ts';
import {
  changeState,
  FOLLOW_EVENTS,
  HOLDS,
  isLive,
  removeRecord,
  type SourceState,
  statesBefore,
  TRANSITIONS,
} from '../../../edge/sources/states.ts';
import { insertProject, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

/** The decided cells, by hand: the next state of each event, and `-` for none. */
const DECIDED = `
             none     copying    following  stopped    cut_over  failed
  start      copying  -          -          -          copying   copying
  follow     -        following  -          -          -         -
  fail       -        failed     -          -          -         -
  forget     -        none       -          -          -         -
  run        -        -          following  following  -         -
  halt       -        -          stopped    stopped    -         -
  cut_over   -        -          cut_over   cut_over   -         -
  stop       -        -          none       none       -         -
`;
/** What `main` is held for in each state, and whether its host follows or can continue. */
const DECIDED_HOLDS: Record<SourceState, [hold: 'import' | 'following' | null, isLive: boolean]> = {
  none: [null, false],
  copying: ['import', false],
  following: ['following', true],
  stopped: ['following', true],
  cut_over: [null, false],
  failed: [null, false],
};

const [states = [], ...lines] = DECIDED.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));
const CELLS = lines.flatMap(([event = '', ...cells]) =>
  cells.map((next, at) => ({
    event: event.replace('_', ' ') as (typeof FOLLOW_EVENTS)[number],
    state: states[at] as SourceState,
    next,
  })),
);

test('every cell is decided', () => {
  expect(CELLS).toHaveLength(FOLLOW_EVENTS.length * Object.keys(DECIDED_HOLDS).length);
});

const THEN = new Date(1_000);
const NOW = new Date(50_000);

/** @returns the project, with a record unless the state is `none` */
async function store(state: SourceState) {
  const projectId = crypto.randomUUID();
  await insertProject(db, 'h', projectId);
  if (state !== 'none')
    await db.insert(follows).values({
      projectId,
      branchId: crypto.randomUUID(),
      tenantId: 't',
      jobId: crypto.randomUUID(),
      state,
      source: { host: 'db.example.com', port: 5432, database: 'shop', version: '17.2' },
      publication: null,
      tables: [],
      problem: { code: 'slot', message: 'gone', table: null, statement: null },
      observedAt: THEN,
      createdAt: THEN,
      updatedAt: THEN,
    });
  return projectId;
}
const read = async (projectId: string) =>
  (await db.select().from(follows).where(eq(follows.projectId, projectId))).at(0) ?? null;

test.each(CELLS)('$event of a source that is $state: $next', async ({ event, state, next }) => {
  expect(TRANSITIONS[event][state] ?? '-').toBe(next);
  const projectId = await store(state);
  const bystander = await store(state);
  const before = await read(projectId);
  const which = eq(follows.projectId, projectId);
  if (event === 'start') {
    // The reservation replaces the record; this is the condition for it.
    if (state !== 'none') expect(statesBefore('start').includes(state)).toBe(next !== '-');
    return;
  }
  if (event === 'forget' || event === 'stop') await removeRecord(db, event, which);
  else await changeState(db, event, which, { problem: null, updatedAt: NOW });
  const after = await read(projectId);
  if (next === '-') expect(after).toEqual(before);
  else if (next === 'none') expect(after).toBeNull();
  else expect(after).toEqual({ ...before, state: next, problem: null, updatedAt: NOW });
  expect((await read(bystander))?.state ?? 'none').toBe(state);
});

test.each(Object.entries(DECIDED_HOLDS))(
  'main of a source that is %s is held for %s',
  (name, [hold, live]) => {
    const state = name as SourceState;
    expect(HOLDS[state]).toBe(hold);
    if (state !== 'none') expect(isLive({ state })).toBe(live);
  },
);

test('every hold of a branch belongs to a state', () => {
  expect(new Set(Object.values(HOLDS))).toEqual(new Set([null, ...projectBranches.hold.enumValues]));
});
