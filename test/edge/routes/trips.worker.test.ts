import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { callOperation, type Ids, OPERATIONS, type Operation } from '../../support/operations.ts';
import { startTripsGateway, type TripsGateway, tallyOf } from '../../support/worker/trips-gateway.ts';

/** Long enough for all that need not wait to set out meanwhile. */
const DELAY_MS = 20;

const READS = OPERATIONS.filter(({ method }) => method === 'GET');

/** What is asked with GET and is no read: it ends a sign-in, or becomes the link of a host. */
const NO_READS = ['completeProviderSignIn', 'openLink'];
/** What the host itself answers, or its link. */
const OF_THE_HOST = ['listTables', 'listRows', 'listHosts'];
/** What takes more than one trip beside the host, and why. */
const LONGER: Record<string, { trips: number; because: string }> = {
  getCredentials: { trips: 2, because: 'what is audited is written once it is known to exist' },
  streamProjectMetrics: { trips: 2, because: 'an object holds a stream for those alone who may hear it' },
  streamBranchMetrics: { trips: 2, because: 'an object holds a stream for those alone who may hear it' },
  isReady: { trips: 3, because: 'anybody may ask: D1 and the links are asked for nobody over the limit' },
};

const EXCEPTIONS = [...NO_READS, ...OF_THE_HOST, ...Object.keys(LONGER)];
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
});
afterAll(() => gateway?.stop());

/** What the operation costs when it was asked for before. */
async function warmTally(operation: Operation) {
  const callers: Partial<Record<Operation['access'], Api>> = {
    platform: gateway.platform,
    public: new Api(gateway.url, null),
  };
  const call = () => callOperation(callers[operation.access] ?? gateway.api, operation, ids);
  await call();
  const answer = await call();
  expect([200, 302], JSON.stringify(answer.body)).toContain(answer.status);
  return tallyOf(answer);
}

describe('a warm read', () => {
  test.each(OF_METADATA)('of metadata alone takes one trip: $id', async (operation) => {
    expect(await warmTally(operation)).toMatchObject({ sequential: 1 });
  });

  test.each(OF_THE_HOST.map(named))("takes one trip besides the host's: $id", async (operation) => {
    const { sequential, trips } = await warmTally(operation);
    const besides = trips.filter(({ to }) => !to.startsWith('HOST_LINK.'));
    expect(besides.map(({ after }) => after)).toEqual(besides.map(() => 0));
    expect(sequential).toBe(2);
    expect(trips.at(-1)).toMatchObject({ to: expect.stringMatching(/^HOST_LINK\./), after: 1 });
  });

  test.each(Object.entries(LONGER))('takes as many as it must: %s', async (id, { trips, because }) => {
    expect(await warmTally(named(id)), because).toMatchObject({ sequential: trips });
  });

  test('is every operation of the API that is asked with GET', () => {
    expect(OF_METADATA.length).toBeGreaterThanOrEqual(14);
    for (const id of EXCEPTIONS) expect(named(id).method).toBe('GET');
  });
});

test('what an object asks of another one is counted', async () => {
  const answer = await gateway.api.post(`/api/v1/projects/${ids.project_id}/branches`, {
    branch_name: 'more',
  });
  const { sequential, trips } = tallyOf(answer);
  const afterObject = trips.findIndex(({ to }) => to === 'PROJECT_COORDINATOR.createBranch');
  expect(trips.slice(afterObject + 1).map(({ to }) => to)).toContain('HOST_LINK.call');
  expect(sequential).toBeGreaterThan(5);
});

test('whether a measurement is stale is told by the host that the project is on', async () => {
  const usage = async () => (await gateway.api.get(`/api/v1/projects/${ids.project_id}/usage`)).body;
  expect(await usage()).toMatchObject({ stale: false });
  const setLinked = await gateway.moveProject(ids.project_id ?? '');
  await setLinked(false);
  expect(await usage()).toMatchObject({ stale: true });
  await setLinked(true);
  expect(await usage()).toMatchObject({ stale: false });
});
