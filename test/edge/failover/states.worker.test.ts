import { eq, inArray } from 'drizzle-orm';
import { beforeEach, expect, test } from 'vitest';
import type { HostRole } from '../../../edge/database/column-types.ts';
import { hosts } from '../../../edge/database/schema.ts';
import { type Event, transition } from '../../../edge/failover/states.ts';
import { startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();

/**
 * The decided cells, by hand: event, role of the primary's side, and the next roles of both sides for each role of the standby's
 * side. `-`: nothing is written.
 */
const DECIDED = `
                        primary          closing          standby          fenced
  admit       primary   -                -                primary,standby  primary,standby
  admit       closing   -                -                -                -
  admit       standby   -                -                -                -
  admit       fenced    -                -                -                -
  close       primary   -                -                closing,standby  -
  close       closing   -                -                closing,standby  -
  close       standby   -                -                -                -
  close       fenced    -                -                -                -
  reopen      primary   -                -                -                -
  reopen      closing   primary,primary  primary,closing  primary,standby  primary,fenced
  reopen      standby   -                -                -                -
  reopen      fenced    -                -                -                -
  switch_over primary   -                -                -                -
  switch_over closing   -                -                fenced,primary   -
  switch_over standby   -                -                -                -
  switch_over fenced    -                -                -                -
  fail_over   primary   -                -                fenced,primary   -
  fail_over   closing   -                -                fenced,primary   -
  fail_over   standby   -                -                -                -
  fail_over   fenced    -                -                -                -
`;

const [roles = [], ...lines] = DECIDED.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));
const CELLS = lines.flatMap(([event = '', primary, ...cells]) =>
  cells.map((next, at) => ({
    event: event.replace('_', ' ') as Event,
    primary: primary as HostRole,
    standby: roles[at] as HostRole,
    next,
  })),
);

let primaryId: string;
let standbyId: string;
const now = new Date();
beforeEach(() => {
  primaryId = crypto.randomUUID();
  standbyId = crypto.randomUUID();
});

const host = (id: string, role: HostRole, other: string) => ({
  id,
  name: id,
  dbHost: 'db.example.com',
  directPort: 5432,
  pooledPort: 6432,
  generation: 3,
  enrolledAt: now,
  createdAt: now,
  role,
  standbyOf: role === 'primary' || role === 'closing' ? null : other,
  yieldsSince: role === 'closing' ? now : null,
});

async function store(primary: HostRole, standby: HostRole) {
  await db.insert(hosts).values([host(primaryId, primary, standbyId), host(standbyId, standby, primaryId)]);
  return read();
}
const isOfPair = () => inArray(hosts.id, [primaryId, standbyId]);
async function read() {
  const rows = await db.select().from(hosts).where(isOfPair());
  const of = (id: string) => rows.find((row) => row.id === id) as (typeof rows)[number];
  return { primary: of(primaryId), standby: of(standbyId) };
}

test('every cell is decided', () => expect(CELLS).toHaveLength(5 * 4 * 4));

test.each(CELLS)('$event, $primary and $standby: $next', async ({ event, primary, standby, next }) => {
  const pair = await store(primary, standby);
  const isAlone = event === 'reopen';
  const written = await transition(
    db,
    event,
    { primary: pair.primary, standby: isAlone ? null : pair.standby },
    { generation: 9, now },
  );
  expect(written.ok).toBe(next !== '-');
  const after = await read();
  if (next === '-') return expect(after).toEqual(pair);
  expect(`${after.primary.role},${after.standby.role}`).toBe(next);
  const swapped = event === 'switch over' || event === 'fail over';
  expect(after.primary).toMatchObject({ generation: 9, standbyOf: swapped ? standbyId : null });
  expect(after.standby.standbyOf).toBe(
    swapped || standby === 'primary' || standby === 'closing' ? null : primaryId,
  );
  expect(after.primary.yieldsSince !== null).toBe(after.primary.role === 'closing');
});

test.each(['admit', 'close', 'switch over', 'fail over'] as const)(
  '%s of records that another request has changed writes nothing',
  async (event) => {
    const pair = await store(event === 'switch over' ? 'closing' : 'primary', 'standby');
    await db.update(hosts).set({ generation: 4 }).where(isOfPair());
    expect((await transition(db, event, pair, { generation: 9, now })).ok).toBe(false);
    expect((await read()).primary).toMatchObject({ role: pair.primary.role, generation: 4 });
  },
);

test('a standby of another primary takes no place', async () => {
  const pair = await store('primary', 'standby');
  await db.update(hosts).set({ standbyOf: crypto.randomUUID() }).where(eq(hosts.id, standbyId));
  expect((await transition(db, 'fail over', pair, { generation: 9, now })).ok).toBe(false);
  expect((await read()).primary.role).toBe('primary');
});
