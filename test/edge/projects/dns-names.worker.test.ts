import { eq, ne } from 'drizzle-orm';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { hosts, projects } from '../../../edge/database/schema.ts';
import {
  addressOf,
  nameProject,
  removeName,
  repairNames,
  urlsChange,
} from '../../../edge/projects/dns-names.ts';
import { readSettings } from '../../../edge/settings.ts';
import type { HostDescription } from '../../../shared/protocol/host-description.ts';
import { CloudflareDns } from '../../support/cloudflare-dns.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { insertDeletion, insertProject, startRecords } from '../../support/records/records.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const DOMAIN = 'db.example.org';
const dns = new CloudflareDns();
const { db } = await startRecords();

const settings = (more: object = {}) =>
  readSettings({ ...SETTINGS, ...dns.settings, DB_DOMAIN: DOMAIN, ...more });

beforeAll(() => dns.start());
afterAll(() => dns.stop());
beforeEach(async () => {
  Object.assign(dns, { records: [], changes: [], lists: [], isRefusing: false });
  await db.delete(projects);
  await setHost('h', '192.0.2.1');
  await insertProject(db, 'h', 'web_shop');
});

const DESCRIPTION = { certificate_names: ['h.example.com', `*.${DOMAIN}`] } as HostDescription;

const setHost = (id: string, dbHost: string, description: HostDescription | null = DESCRIPTION) =>
  db.update(hosts).set({ dbHost, description }).where(eq(hosts.id, id));
const recordOf = async (id: string) => {
  const [row] = await db.select().from(projects).where(eq(projects.id, id));
  return row && [row.dnsName, row.dnsTarget];
};
const NAME = `web-shop-prod.${DOMAIN}`;
const led = () => dns.records.map(({ type, name, content }) => [type, name, content]);

test.each([
  ['192.0.2.1', 'A'],
  ['2001:db8::1', 'AAAA'],
  ['eu-1.example.com', 'CNAME'],
])('a project of the host %s gets a record of type %s, and gets it once', async (address, type) => {
  await setHost('h', address);
  await nameProject(db, settings(), 'web_shop');
  await nameProject(db, settings(), 'web_shop');
  expect(dns.records).toMatchObject([
    { type, name: NAME, content: address, ttl: 60, proxied: false, comment: 'branchgate project web_shop' },
  ]);
  expect(await recordOf('web_shop')).toEqual([NAME, address]);
  expect(dns.changes).toEqual(['POST']);
});

test('the record is replaced in one call when the address changes, also its type', async () => {
  await nameProject(db, settings(), 'web_shop');
  await setHost('h', 'eu-2.example.com');
  await repairNames(db, settings(), 'h');
  expect(led()).toEqual([['CNAME', NAME, 'eu-2.example.com']]);
  expect(dns.changes).toEqual(['POST', 'PUT']);
  expect(await recordOf('web_shop')).toEqual([NAME, 'eu-2.example.com']);
});

test.each<[string, HostDescription | null, object]>([
  [
    'the certificate of its host does not cover',
    { ...DESCRIPTION, certificate_names: ['*.example.org'] },
    {},
  ],
  ['its host has not reported', null, {}],
  ['an agent of the last release cannot report', { ...DESCRIPTION, certificate_names: null }, {}],
  ['the settings do not give', DESCRIPTION, { DB_DOMAIN: undefined }],
  ['the gateway has no token for', DESCRIPTION, { DNS_API_TOKEN: undefined }],
])('a project has no name that %s', async (_why, description, more) => {
  await setHost('h', '192.0.2.1', description);
  await nameProject(db, settings(more), 'web_shop');
  await repairNames(db, settings(more), 'h');
  expect([dns.records, await recordOf('web_shop')]).toEqual([[], [null, null]]);
});

test.each([
  ['2001:DB8:0::01', '2001:db8::1'],
  ['EU-1.Example.com', 'eu-1.example.com'],
])('the address %s is written once, although Cloudflare stores it as %s', async (address, content) => {
  await setHost('h', address);
  await nameProject(db, settings(), 'web_shop');
  await nameProject(db, settings(), 'web_shop');
  await repairNames(db, settings(), 'h');
  expect(dns.records).toMatchObject([{ name: NAME, content }]);
  expect(dns.changes).toEqual(['POST']);
  // The reconciliation did not even ask for the record of this name.
  expect(dns.lists.filter((query) => query.get('name') === NAME)).toHaveLength(2);
});

const UNCOVERED = { ...DESCRIPTION, certificate_names: ['h.example.com'] };
const shown = async (description: HostDescription, more: object = {}) => {
  const [row] = await db.select().from(projects).where(eq(projects.id, 'web_shop'));
  return row && addressOf(settings(more), row, { dbHost: '192.0.2.1', description });
};

test.each(['db.example.net', 'example.org', `eu.${DOMAIN}`])(
  'in the domain %s that comes later a project is named once the certificate covers it',
  async (domain) => {
    const more = { DB_DOMAIN: domain };
    const name = `web-shop-prod.${domain}`;
    await nameProject(db, settings(), 'web_shop');
    await nameProject(db, settings(more), 'web_shop');
    await repairNames(db, settings(more), 'h');
    expect(led()).toEqual([['A', NAME, '192.0.2.1']]);
    expect(await shown(DESCRIPTION, more)).toBe('192.0.2.1');

    const description = { ...DESCRIPTION, certificate_names: [`*.${domain}`] };
    await setHost('h', '192.0.2.1', description);
    await repairNames(db, settings(more), 'h');
    const { length } = dns.changes;
    await repairNames(db, settings(more), 'h');
    expect(dns.changes).toHaveLength(length);
    // Clients may still use the old name.
    expect(led()).toEqual([
      ['A', NAME, '192.0.2.1'],
      ['A', name, '192.0.2.1'],
    ]);
    expect(await shown(description, more)).toBe(name);
  },
);

test('a name whose host is no longer covered is in no URL, and follows the address of the host', async () => {
  await nameProject(db, settings(), 'web_shop');
  expect(await shown(DESCRIPTION)).toBe(NAME);
  await setHost('h', '192.0.2.3', UNCOVERED);
  await repairNames(db, settings(), 'h');
  expect(led()).toEqual([['A', NAME, '192.0.2.3']]);
  expect(await shown(UNCOVERED)).toBe('192.0.2.1');
});

test.runIf(IS_NIGHTLY)(
  'twenty names are repaired at a time, shared among the hosts, and those that are refused stop no other',
  async () => {
    await db.delete(hosts).where(ne(hosts.id, 'h'));
    const taken = Array.from({ length: 25 }, (_, n) => `a${n}`);
    for (const id of taken) {
      await insertProject(db, 'h', id);
      const name = `${id}-prod.${DOMAIN}`;
      dns.records.push({ id, type: 'A', name, content: '198.51.100.7', comment: 'theirs' });
    }
    await db.delete(projects).where(eq(projects.id, 'web_shop'));
    await insertProject(db, 'h', 'z');
    const repaired = async () => {
      dns.lists = [];
      expect(await repairNames(db, settings(), 'h')).toBe(false);
      return dns.lists.length - 1;
    };
    const isNamed = () => dns.records.some(({ name }) => name === `z-prod.${DOMAIN}`);
    expect(await repaired()).toBe(20);
    for (let runs = 0; runs < 30 && !isNamed(); runs += 1) await repaired();
    expect(isNamed()).toBe(true);
    await insertProject(db, 'h2', 'unused');
    expect(await repaired()).toBe(10);
  },
);

test("a name that the zone's owner uses is left alone", async () => {
  dns.records = [{ id: 'theirs', type: 'A', name: NAME, content: '198.51.100.7', comment: 'mail' }];
  await nameProject(db, settings(), 'web_shop');
  await removeName(db, settings(), 'web_shop');
  expect([led(), await recordOf('web_shop')]).toEqual([[['A', NAME, '198.51.100.7']], [null, null]]);
});

test('what is missing, leads elsewhere, is double or is left of a deleted project is repaired', async () => {
  for (const id of ['missing', 'elsewhere', 'double', 'right']) {
    await insertProject(db, 'h', id);
    await nameProject(db, settings(), id);
  }
  const of = (id: string) => dns.records.find(({ name }) => name === `${id}-prod.${DOMAIN}`);
  const [missing, elsewhere, double, right] = ['missing', 'elsewhere', 'double', 'right'].map(of);
  if (!elsewhere || !double || !right) throw new Error('the names were written');
  dns.records = dns.records.filter((record) => record !== missing);
  elsewhere.content = '192.0.2.99';
  dns.records.push(
    { ...double, id: 'second', content: '192.0.2.98' },
    { ...right, id: 'left', name: `old-prod.${DOMAIN}`, comment: 'branchgate project deleted' },
    { ...right, id: 'untraced', name: `lost-prod.${DOMAIN}`, comment: 'branchgate project lost' },
    { ...right, id: 'foreign', name: 'old-prod.staging.example.net', comment: 'branchgate project deleted' },
  );
  await insertDeletion(db, 'h', 'deleted');
  await repairNames(db, settings(), 'h');
  expect(led().sort()).toEqual(
    [
      ...['missing', 'elsewhere', 'double', 'right', 'web-shop', 'lost'].map((id) => [
        'A',
        `${id}-prod.${DOMAIN}`,
        '192.0.2.1',
      ]),
      ['A', 'old-prod.staging.example.net', '192.0.2.1'],
    ].sort(),
  );
  const { length } = dns.changes;
  await repairNames(db, settings(), 'h');
  expect(dns.changes).toHaveLength(length);
});

test('a name is removed with the record of its project only, also if the writing was never recorded', async () => {
  await insertProject(db, 'h', 'other');
  for (const id of ['web_shop', 'other']) await nameProject(db, settings(), id);
  await db.update(projects).set({ dnsName: null }).where(eq(projects.id, 'web_shop'));
  await removeName(db, settings(), 'web_shop');
  await removeName(db, settings(), 'web_shop');
  expect(led()).toEqual([['A', `other-prod.${DOMAIN}`, '192.0.2.1']]);
});

test('a project that moves while its name is written has the name of its new host', async () => {
  await insertProject(db, 'h2', 'unused');
  await setHost('h2', '192.0.2.2');
  dns.beforeNext = () => db.update(projects).set({ hostId: 'h2' }).where(eq(projects.id, 'web_shop'));
  await nameProject(db, settings(), 'web_shop');
  expect([led(), await recordOf('web_shop')]).toEqual([[['A', NAME, '192.0.2.2']], [NAME, '192.0.2.2']]);
});

test('a service that refuses is an error without the token', async () => {
  dns.isRefusing = true;
  await expect(nameProject(db, settings(), 'web_shop')).rejects.toThrow(/^GET of a DNS record: 403/);
  await expect(repairNames(db, settings(), 'h')).rejects.not.toThrow(dns.token);
  expect(await recordOf('web_shop')).toEqual([null, null]);
});

const PLACE = { dbHost: '192.0.2.1', description: DESCRIPTION, directPort: 5432, pooledPort: 6432 };
test.each([
  ['which has a name on both', NAME, {}, false],
  ['which has no name', null, {}, true],
  ['to another direct port', NAME, { directPort: 15432 }, true],
  ['to another pooled port', NAME, { pooledPort: 16432 }, true],
  [
    'to a certificate without its name',
    NAME,
    { description: { ...DESCRIPTION, certificate_names: [] } },
    true,
  ],
])(
  'the move of a project %s changes its URLs as the credentials would',
  (_what, dnsName, change, changes) => {
    const rows = [PLACE, { ...PLACE, dbHost: '192.0.2.2', ...change }];
    expect(urlsChange(settings(), { dnsName }, rows)).toBe(changes);
  },
);
