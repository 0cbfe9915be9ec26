import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { insertRule } from '../../../edge/access/change-rules.ts';
import { currentList, refreshLists, toNamedNetworkResponse } from '../../../edge/access/named-networks.ts';
import { networkLists, withRanges } from '../../../edge/access/network-rule.ts';
import { auditEvents, namedNetworks, networkRules, projects } from '../../../edge/database/schema.ts';
import { ACTOR, insertProject, ruleRow, startRecords } from '../../support/records/records.ts';

const { db } = await startRecords();
const NOW = new Date('2026-11-26T12:00:00Z');
const after = (hours: number) => new Date(NOW.getTime() + hours * 3_600_000);
const TEN = Array.from({ length: 10 }, (_, n) => `104.${16 + 2 * n}.0.0/16`);

/** What the source responds with; null: 500. */
let published: string[] | null = TEN;
let reads = 0;
const source = createServer((_, response) => {
  reads += 1;
  if (published === null) response.writeHead(500).end('away');
  else response.end(published.join('\n'));
});
let settings: Parameters<typeof currentList>[1];

beforeAll(async () => {
  await once(source.listen(0, '127.0.0.1'), 'listening');
  const url = `http://127.0.0.1:${(source.address() as AddressInfo).port}`;
  settings = { CLOUDFLARE_NETWORKS_URLS: [url], GITHUB_META_URL: url };
});
afterAll(() => {
  source.closeAllConnections();
  source.close();
});

const revision = async () => (await db.select().from(projects))[0]?.accessRevision;
const changes = () => db.select().from(auditEvents).where(eq(auditEvents.name, 'network_rule.list_changed'));
const versions = async () => (await db.select().from(networkRules)).map(({ listVersion }) => listVersion);

const seconds = (count: number) => after(count / 3600);
const UNAVAILABLE = { ok: false, failure: { code: 'NETWORK_LIST_UNAVAILABLE' } };

test('without a list there is no rule, and a source that is away is asked once a minute', async () => {
  published = null;
  for (const second of [0, 1, 59])
    expect(await currentList(db, settings, 'cloudflare', seconds(second))).toMatchObject(UNAVAILABLE);
  expect(reads).toBe(1);
  expect(await currentList(db, settings, 'cloudflare', seconds(60))).toMatchObject(UNAVAILABLE);
  expect(reads).toBe(2);
  // Each list has a source of its own.
  expect(await currentList(db, settings, 'github-actions', seconds(61))).toMatchObject(UNAVAILABLE);
  expect(reads).toBe(3);
  const rows = await db.select().from(namedNetworks);
  expect(rows.map((row) => toNamedNetworkResponse('cloudflare', row))).toEqual(
    rows.map(() => ({ network: 'cloudflare', cidrs: [], changed_at: null, checked_at: null })),
  );
  await db.delete(namedNetworks).where(eq(namedNetworks.name, 'github-actions'));
});

test('a list is read once a day for new rules', async () => {
  published = TEN;
  expect(await currentList(db, settings, 'cloudflare', seconds(120))).toMatchObject({
    ok: true,
    value: { version: 1, failedAt: null },
  });
  const before = reads;
  expect(await currentList(db, settings, 'cloudflare', after(23))).toMatchObject({ ok: true });
  expect(reads).toBe(before);
  published = null;
  // A source that is away leaves the list of yesterday, and is asked once a minute.
  for (const hours of [25, 25.01])
    expect(await currentList(db, settings, 'cloudflare', after(hours))).toMatchObject({
      ok: true,
      value: { version: 1, ranges: TEN },
    });
  expect(reads).toBe(before + 1);
});

test('a changed list changes the projects that have it, once, with an audit event', async () => {
  published = TEN;
  expect(await insertRule(db, ruleRow('cloudflare', { listVersion: 1 }), ACTOR, null)).toMatchObject({
    ok: true,
  });
  expect([await revision(), await refreshLists(db, settings, after(1))]).toEqual([1, []]);

  published = [...TEN.slice(1), '1.0.0.0/24'];
  expect(await refreshLists(db, settings, after(2))).toEqual(['p']);
  expect([await revision(), await versions()]).toEqual([2, [2]]);
  expect(await changes()).toEqual([
    expect.objectContaining({
      actorId: null,
      tenantId: 't',
      projectId: 'p',
      metadata: {
        network: 'cloudflare',
        networks: 10,
        added: 1,
        removed: 1,
        examples: { added: ['1.0.0.0/24'], removed: ['104.16.0.0/16'] },
      },
    }),
  ]);
  const rules = withRanges(await db.select().from(networkRules), await networkLists(db));
  expect(rules.map(({ cidr }) => cidr).toSorted()).toEqual(['1.0.0.0/24', ...TEN.slice(1)].toSorted());
  expect(await refreshLists(db, settings, after(3))).toEqual([]);
});

test.each([
  ['is away', null],
  ['lists too few networks', TEN.slice(0, 3)],
  ['lists too many networks', Array.from({ length: 101 }, (_, n) => `105.${n}.1.0/24`)],
  ['lists everything', ['0.0.0.0/0', '::/0']],
  ['is another page', ['<html>', 'Sign in']],
])('a source that %s leaves the list as it was', async (_, list) => {
  const [before] = await db.select().from(namedNetworks);
  published = list;
  expect(await refreshLists(db, settings, after(4))).toEqual([]);
  expect(await db.select().from(namedNetworks)).toEqual([before]);
});

test('a run that was killed after it had stored the list is finished by the next one', async () => {
  published = null;
  await db.update(namedNetworks).set({ version: 7, ranges: TEN });
  expect(await refreshLists(db, settings, after(5))).toEqual(['p']);
  expect([await revision(), await versions()]).toEqual([3, [7]]);
});

test('a rule by name counts as the longest list', async () => {
  expect(await insertRule(db, ruleRow('github-actions', { listVersion: 1 }), ACTOR, null)).toMatchObject({
    ok: true,
  });
  expect(
    await insertRule(db, { ...ruleRow('github-actions', { listVersion: 1 }), branchId: null }, ACTOR, null),
  ).toMatchObject({
    failure: { code: 'RULE_LIMIT_REACHED' },
  });
  expect(await insertRule(db, ruleRow('203.0.113.1/32', { listVersion: 0 }), ACTOR, null)).toMatchObject({
    ok: true,
  });
});

test('each of several projects gets a revision and an audit event of its own', async () => {
  published = null;
  await db.delete(networkRules);
  await db.insert(networkRules).values(ruleRow('cloudflare', { listVersion: 1 }));
  await insertProject(db, 'h', 'q');
  await db.insert(networkRules).values(ruleRow('cloudflare', { projectId: 'q', listVersion: 1 }));
  const before = (await changes()).length;
  expect((await refreshLists(db, settings, after(6))).toSorted()).toEqual(['p', 'q']);
  expect(
    (await changes())
      .slice(before)
      .map(({ projectId }) => projectId)
      .toSorted(),
  ).toEqual(['p', 'q']);
});
