import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import {
  callOperation,
  createResources,
  type Ids,
  SIGNED_IN_OPERATIONS,
  USER_OPERATIONS,
} from '../support/operations.ts';
import { type Stack, startStack, UNMEASURED } from '../support/stack/stack.ts';
import { contentOfD1 } from '../support/tenants.ts';

const TIMES = 10;
/** Writes an audit event on every call (specification 4.3). */
const AUDITED = 'getCredentials';
const READS = [...USER_OPERATIONS, ...SIGNED_IN_OPERATIONS].filter(({ method }) => method === 'GET');
const WARM_READS = READS.filter(({ id }) => id !== AUDITED);

let stack: Stack;
let api: Api;
let ids: Ids;

beforeAll(async () => {
  stack = await startStack({ env: UNMEASURED });
  api = new Api(stack.url, await stack.token());
  ids = await createResources(api);
  // Each event of the creations leaves D1 some time after them.
  await eventually(async () => expect(records().event_outbox).toEqual([]));
});
afterAll(() => stack?.stop());

const records = () => contentOfD1(stack.devDir);

// By day the tests of access show this with one read.
describe.runIf(IS_NIGHTLY)('a read by a known user', () => {
  test.each(WARM_READS)('$id writes nothing into D1', async (operation) => {
    const before = records();
    for (let n = 0; n < TIMES; n++) {
      expect((await callOperation(api, operation, ids)).status).toBe(200);
    }
    expect(records()).toEqual(before);
  });

  test('is tested with at least 200 requests, and a write would be detected', async () => {
    expect(WARM_READS.length * TIMES).toBeGreaterThanOrEqual(200);
    const [audited] = READS.filter(({ id }) => id === AUDITED);
    if (!audited) throw new Error(`${AUDITED} is no operation`);
    const before = records().audit_events?.length ?? 0;
    expect((await callOperation(api, audited, ids)).status).toBe(200);
    expect(records().audit_events).toHaveLength(before + 1);
  });

  test('writes nothing with a newer token after its first use', async () => {
    const newer = new Api(stack.url, await stack.token());
    await newer.get('/api/v1/projects');
    const before = records();
    for (let n = 0; n < TIMES; n++) expect((await newer.get('/api/v1/projects')).status).toBe(200);
    expect(records()).toEqual(before);
  });
});

test('a new project and a new branch have a size within seconds, long before they are measured', async () => {
  const { id } = await api.project('Sized');
  const sizes = async () => {
    const { body } = await api.get<{ branches: { database_size_bytes: number }[] }>(
      `/api/v1/projects/${id}/usage`,
    );
    return body.branches.map(({ database_size_bytes }) => database_size_bytes > 0);
  };
  await eventually(async () => expect(await sizes()).toEqual([true]), 5);
  await api.branch(id, 'pr-1');
  await eventually(async () => expect(await sizes()).toEqual([true, true]), 5);
});
