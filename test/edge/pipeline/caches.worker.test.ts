import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../../support/api.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { callOperation, type Ids, OPERATIONS, SCIM_OPERATIONS } from '../../support/operations.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

/** The API's own description is the same for everyone. */
const CACHEABLE = ['getDescription', 'readDescription'];

let gateway: TripsGateway;
let ids: Ids;

beforeAll(async () => {
  gateway = await startTripsGateway(0);
  ids = { ...(await gateway.makeThings()), host_id: crypto.randomUUID(), id: crypto.randomUUID() };
});
afterAll(() => gateway?.stop());

/** Operations that change something come last, deletions after all others. */
const ORDER = ['GET', 'PUT', 'PATCH', 'POST', 'DELETE'];
const IN_ORDER = [...OPERATIONS, ...SCIM_OPERATIONS].toSorted(
  (a, b) => ORDER.indexOf(a.method) - ORDER.indexOf(b.method),
);

describe.each(IN_ORDER)('no cache may store responses of $id', (operation) => {
  const expected = CACHEABLE.includes(operation.id) ? null : 'no-store';

  test('with the access that it requires, and without', async () => {
    const authorised = operation.access === 'platform' ? gateway.platform : gateway.api;
    // By day the refusal of one operation stands for that of all.
    const callers =
      IS_NIGHTLY || operation === IN_ORDER[0] ? [new Api(gateway.url, null), authorised] : [authorised];
    for (const api of callers) {
      const { status, headers } = await callOperation(api, operation, ids);
      expect(headers.get('cache-control'), String(status)).toBe(expected);
    }
  });
});

test.each(['/', '/api/v1/nowhere', '/v1/nowhere', '/platform/v1/nowhere'])(
  'no cache may store the response to %s',
  async (path) => {
    for (const api of [new Api(gateway.url, null), gateway.api])
      expect((await api.get(path)).headers.get('cache-control')).toBe('no-store');
  },
);
