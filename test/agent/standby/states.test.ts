import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Event } from '../../../agent/standby/states.ts';
import {
  moveMember,
  noteMember,
  readMember,
  recordMember,
  refuseMember,
} from '../../../agent/standby/stored-member.ts';

/**
 * The decided cells, by hand: stored state, event, `next state:action`. `-` is the same state without an action, and `=` leaves
 * the file as it is.
 */
const DECIDED = `
              primary            closing            standby       fenced        copy_begun    copy_ended  promotion_ended  refused      start
  none        primary:open       primary:close      fenced:fence  fenced:fence  copying:none  =:reject    =:ignore         =:ignore     =:ignore
  primary     primary:open       primary:close      fenced:fence  fenced:fence  copying:none  =:reject    =:ignore         fenced:none  =:ignore
  copying     =:reject           =:reject           copying:none  fenced:fence  copying:none  standby:none  =:ignore       =:ignore     =:ignore
  standby     promoting:promote  promoting:promote  standby:none  fenced:fence  copying:none  =:ignore    =:ignore         =:ignore     =:ignore
  promoting   promoting:promote  promoting:promote  fenced:fence  fenced:fence  copying:none  =:reject    primary:none     fenced:none  promoting:promote
  fenced      =:ignore           =:ignore           fenced:fence  fenced:fence  copying:none  =:reject    =:ignore         =:ignore     =:stop
`;

const [head = [], ...lines] = DECIDED.trim()
  .split('\n')
  .map((line) => line.trim().split(/\s+/));
const CELLS = lines.flatMap(([state = '', ...cells]) =>
  cells.map((cell, at) => {
    const [to = '', action = ''] = cell.split(':');
    return { state, event: (head[at] ?? '').replace('_', ' '), to, action };
  }),
);

let settings: { STATE_DIR: string };
const file = () => join(settings.STATE_DIR, 'member.json');
beforeEach(() => {
  settings = { STATE_DIR: mkdtempSync(join(tmpdir(), 'branchgate-states-')) };
});
afterEach(() => rmSync(settings.STATE_DIR, { recursive: true }));

const STANDBY_ID = crypto.randomUUID();
const store = (role: string, fields: object = {}) =>
  writeFileSync(
    file(),
    JSON.stringify({
      role,
      generation: 3,
      closing: false,
      standby_id: STANDBY_ID,
      lease_seconds: 40,
      survived_until: null,
      primary: null,
      ...fields,
    }),
  );
const content = () => {
  try {
    return readFileSync(file(), 'utf8');
  } catch {
    return null;
  }
};

const RECORDS = {
  primary: { role: 'primary', closing: false },
  closing: { role: 'primary', closing: true },
  standby: { role: 'standby', closing: false },
  fenced: { role: 'fenced', closing: false },
} as const;

function perform(event: string) {
  if (event === 'refused') return refuseMember(settings, 4).then(() => null);
  if (!(event in RECORDS)) return moveMember(settings, event as Event);
  const record = { ...RECORDS[event as keyof typeof RECORDS], generation: 4, lease_seconds: 60 };
  return recordMember(settings, { ...record, standby_id: STANDBY_ID }, async () => {});
}

test('every cell is decided', () => expect(CELLS).toHaveLength(6 * 9));

test.each(CELLS)('$state, $event: $to, $action', async ({ state, event, to, action }) => {
  if (state !== 'none') store(state);
  const before = content();
  const done = await perform(event);
  if (done) expect(done.action).toBe(action);
  if (to === '=') expect(content()).toBe(before);
  else expect(readMember(settings)).toMatchObject({ role: to });
  const isRecord = event in RECORDS || event === 'refused';
  if (to !== '=' && isRecord) expect(readMember(settings)).toMatchObject({ generation: 4 });
  // The guard of a fenced host's lease watches until PostgreSQL has ended.
  if (to === 'fenced') expect(readMember(settings)?.lease_seconds).toBe(state === 'none' ? null : 40);
});

test.each(CELLS.filter(({ event }) => event in RECORDS))(
  '$state, an older record $event: nothing',
  async ({ state, event }) => {
    if (state === 'none') return;
    store(state, { generation: 5 });
    const before = content();
    expect(await perform(event)).toMatchObject({ action: 'ignore' });
    expect(content()).toBe(before);
  },
);

test('a host without a standby has no file, and one that is told of its fence by an old reply stays', async () => {
  const alone = {
    role: 'primary',
    closing: false,
    generation: 1,
    standby_id: null,
    lease_seconds: null,
  } as const;
  expect(await recordMember(settings, alone, async () => {})).toMatchObject({ action: 'ignore' });
  expect(content()).toBe(null);
  store('primary', { generation: 5 });
  await refuseMember(settings, 4);
  expect(readMember(settings)).toMatchObject({ role: 'primary', generation: 5 });
});

test('a lease begins before the record that needs it is stored, and once', async () => {
  const begun: unknown[] = [];
  const record = { ...RECORDS.primary, generation: 4, lease_seconds: 60, standby_id: STANDBY_ID };
  const begin = async () => void begun.push(readMember(settings)?.generation);
  store('primary', { lease_seconds: null });
  await recordMember(settings, record, begin);
  await recordMember(settings, record, begin);
  expect(begun).toEqual([3]);
  store('copying', { lease_seconds: null });
  await recordMember(settings, record, begin);
  store('fenced', { lease_seconds: null });
  await recordMember(settings, record, begin);
  expect(begun).toEqual([3]);
});

test('processes that write the file concurrently lose nothing', async () => {
  store('primary');
  await Promise.all([
    noteMember(settings, { lease_seconds: 99 }),
    noteMember(settings, { survived_until: '2026-01-01T00:00:00Z' }),
    refuseMember(settings, 4),
  ]);
  expect(readMember(settings)).toMatchObject({
    role: 'fenced',
    generation: 4,
    lease_seconds: 99,
    survived_until: '2026-01-01T00:00:00Z',
  });
});
