import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { callOperation, type Ids, OPERATIONS, type Operation } from '../../support/operations.ts';
import type { Tally } from '../../support/worker/trips.ts';
import { startTripsGateway, type TripsGateway, tallyOf } from '../../support/worker/trips-gateway.ts';

/** Long enough for all concurrent calls to start within it. */
const DELAY_MS = 20;
/** An object can do other work during one call, whose trips are counted with it. What a read costs is in each of them. */
const CALLS_MAX = 3;

const READS = OPERATIONS.filter(({ method }) => method === 'GET');

/**
 * GET operations that are not reads: they start or complete a sign-in, open the link of a host, follow a log for
 * minutes, show a move or a trial, of which there is none, or begin a recovery.
 */
const NO_READS = [
  ...['completeProviderSignIn', 'startCompanySignIn', 'completeCompanySignIn', 'authorizeClient'],
  ...['openLink', 'streamEvents', 'getMove', 'getDrain', 'getTrial', 'previewReset'],
];
/** Operations that the host itself serves, or its link. */
const OF_THE_HOST = [
  ...['listTables', 'describeTable', 'diffBranch', 'listChangedRows', 'getRehearsal'],
  ...['listExtensions', 'countSessions'],
  'getMasking',
  'getFollowing',
  'getChange',
  'getHost',
  'listHosts',
];
/** The host is called while the records are read, once the caller has read the branch. */
const AHEAD = ['listRows'];
const STREAM_OPENS = "after the permission check the object takes one of the tenant's places for a stream";
/** Operations that take more than one trip in addition to the host's, and why. */
const LONGER: Record<string, { trips: number; because: string }> = {
  getCredentials: { trips: 2, because: 'what is audited is written once it is known to exist' },
  streamProjectMetrics: { trips: 3, because: STREAM_OPENS },
  streamBranchMetrics: { trips: 3, because: STREAM_OPENS },
  isReady: { trips: 3, because: 'anybody may ask: D1 and the links are asked for nobody over the limit' },
};

const EXCEPTIONS = [...NO_READS, ...OF_THE_HOST, ...AHEAD, ...Object.keys(LONGER)];
const OF_METADATA = READS.filter(({ id }) => !EXCEPTIONS.includes(id));
const named = (id: string): Operation => {
  const operation = READS.find((read) => read.id === id);
  if (!operation) throw new Error(`${id} is no read`);
  return operation;
};

let gateway: TripsGateway;
let ids: Ids;

beforeAll(async () => {
  gateway = await startTripsGateway(DELAY_MS);
  ids = await gateway.makeThings();
  const path = `/api/v1/projects/${ids.project_id}/follow`;
  await gateway.api.post(path, { source_url: 'postgresql://app:secret@db.example.com/shop' });
  await eventually(async () =>
    expect((await gateway.api.get(path)).body).toMatchObject({ state: 'following' }),
  );
});
afterAll(() => gateway?.stop());

const ofOthers = ({ trips }: Tally) => trips.filter(({ to }) => !to.startsWith('HOST_LINK.'));

/** The cost of the operation with warm caches: that of the first call that is as expected, or else of the last. */
async function warmTally(operation: Operation, isExpected: (tally: Tally) => boolean): Promise<Tally> {
  const callers: Partial<Record<Operation['access'], Api>> = {
    platform: gateway.platform,
    public: new Api(gateway.url, null),
  };
  const call = () => callOperation(callers[operation.access] ?? gateway.api, operation, ids);
  await call();
  for (let n = 1; ; n += 1) {
    const answer = await call();
    expect([200, 302], JSON.stringify(answer.body)).toContain(answer.status);
    const tally = tallyOf(answer);
    if (isExpected(tally) || n === CALLS_MAX) return tally;
  }
}

describe('a warm read', () => {
  // None if the isolate has borrowed a share of the limit and the operation reads no record.
  test.each(OF_METADATA)('of metadata alone takes one trip at most: $id', async (operation) => {
    const { sequential } = await warmTally(operation, (tally) => tally.sequential <= 1);
    expect(sequential).toBeLessThanOrEqual(1);
  });

  test.each(OF_THE_HOST.map(named))("takes one trip in addition to the host's: $id", async (operation) => {
    const tally = await warmTally(
      operation,
      (one) => one.sequential === 2 && ofOthers(one).every(({ after }) => after === 0),
    );
    expect(ofOthers(tally).map(({ after }) => after)).toEqual(ofOthers(tally).map(() => 0));
    expect(tally.sequential).toBe(2);
    expect(tally.trips.at(-1)).toMatchObject({ to: expect.stringMatching(/^HOST_LINK\./), after: 1 });
  });

  test('by a key takes one trip', async () => {
    const rights = { name: 'CI', role: 'admin', scopes: ['branchgate:write'], expires_in_days: 1 };
    const { body } = await gateway.api.post<{ key: string }>('/api/v1/api-keys', rights);
    const reader = new Api(gateway.url, body.key);
    const read = () => reader.get(`/api/v1/projects/${ids.project_id}`);
    await read();
    const { sequential, trips } = tallyOf(await read());
    expect(sequential).toBe(1);
    // Of its key. That of its tenant can be borrowed.
    expect(trips.map(({ to }) => to)).toContain('RATE_LIMITER.consume');
  });

  test.each(Object.entries(LONGER))(
    'takes the expected number of trips: %s',
    async (id, { trips, because }) => {
      const { sequential } = await warmTally(named(id), (tally) => tally.sequential === trips);
      expect(sequential, because).toBe(trips);
    },
  );

  test('is tested for every GET operation of the API', () => {
    expect(OF_METADATA.length).toBeGreaterThanOrEqual(14);
    for (const id of EXCEPTIONS) expect(named(id).method).toBe('GET');
  });
});

describe('a page of rows of a branch that the caller has just read', () => {
  const pagesOf = (branch: string, api = gateway.api) =>
    api.get(`/api/v1/projects/${ids.project_id}/branches/${branch}/tables/book/rows`);
  const calls = () => gateway.countCalls(ids.project_id ?? '', 'row.list');
  const made = async (name: string) => {
    const { id } = await gateway.api.branch(ids.project_id ?? '', name);
    return id;
  };
  const setStatus = (id: string, status: string) =>
    gateway.inD1('UPDATE project_branches SET status = ? WHERE id = ?', status, id);

  test('takes one trip, and the first takes more', async () => {
    await made('paged');
    expect(tallyOf(await pagesOf('paged')).sequential).toBeGreaterThan(1);
    const tallies = [];
    while (tallies.length < CALLS_MAX && tallies.at(-1) !== 1)
      tallies.push(tallyOf(await pagesOf('paged')).sequential);
    expect(tallies).toContain(1);
  });

  test('is withheld from a caller who may not have it any more', async () => {
    const id = await made('withheld');
    await pagesOf('withheld');
    await setStatus(id, 'expired');
    const refused = await pagesOf('withheld');
    expect([refused.status, refused.body]).toMatchObject([409, { error: 'BRANCH_NOT_ACTIVE' }]);
  });

  test('is of the branch that has the name by now, not of the one before', async () => {
    const former = await made('renamed');
    await pagesOf('renamed');
    await gateway.inD1(
      "UPDATE project_branches SET branch_name = 'former', database_name = 'former' WHERE id = ?",
      former,
    );
    await made('renamed');
    const before = await calls();
    expect((await pagesOf('renamed')).status).toBe(200);
    expect(await calls()).toBe(before + 2);
  });

  test('is never called for ahead for another caller', async () => {
    await made('others');
    await pagesOf('others');
    const other = new Api(gateway.url, await gateway.tokenOf({ gid: 'user-2', tenant: 'other' }));
    const before = await calls();
    expect((await pagesOf('others', other)).status).toBe(404);
    expect(await calls()).toBe(before);
  });
});

test('calls between objects are counted', async () => {
  const answer = await gateway.api.post(`/api/v1/projects/${ids.project_id}/branches`, {
    branch_name: 'more',
  });
  const { sequential, trips } = tallyOf(answer);
  const afterObject = trips.findIndex(({ to }) => to === 'PROJECT_COORDINATOR.createBranches');
  expect(trips.slice(afterObject + 1).map(({ to }) => to)).toContain('HOST_LINK.call');
  expect(sequential).toBeGreaterThan(5);
});

test('the host of the project determines whether a measurement is stale', async () => {
  const usage = async () => (await gateway.api.get(`/api/v1/projects/${ids.project_id}/usage`)).body;
  expect(await usage()).toMatchObject({ stale: false });
  const setLinked = await gateway.moveProject(ids.project_id ?? '');
  await setLinked(false);
  expect(await usage()).toMatchObject({ stale: true });
  await setLinked(true);
  expect(await usage()).toMatchObject({ stale: false });
});

test("a read has D1's own bookmark, which the next read may send", async () => {
  const path = `/api/v1/projects/${ids.project_id}`;
  const bookmark = (await gateway.api.get(path)).headers.get('x-branchgate-bookmark') ?? '';
  expect(bookmark).toMatch(/^[0-9a-f]+-[0-9a-f-]+$/);
  const headers = { 'X-Branchgate-Bookmark': bookmark };
  const next = await gateway.api.get(path, { headers });
  expect(next.status).toBe(200);
  expect((next.headers.get('x-branchgate-bookmark') ?? '') >= bookmark).toBe(true);
});
