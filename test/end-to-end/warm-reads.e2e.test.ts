import { globSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
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
let database: DatabaseSync;

beforeAll(async () => {
  stack = await startStack({ env: UNMEASURED });
  api = new Api(stack.url, await stack.token());
  ids = await createResources(api);
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  // Each event of the creations leaves D1 some time after them.
  await eventually(async () => expect(contentOfD1(stack.devDir).event_outbox).toEqual([]));
  database = new DatabaseSync(file, { readOnly: true, timeout: 5000 });
});
afterAll(async () => {
  database?.close();
  await stack?.stop();
});

/** SQLite's data version, which changes when another connection has committed a change. */
const version = () => database.prepare('pragma data_version').get()?.data_version;

describe('a read by a known user', () => {
  test.each(WARM_READS)('$id writes nothing into D1', async (operation) => {
    const before = version();
    for (let n = 0; n < TIMES; n++) {
      expect((await callOperation(api, operation, ids)).status).toBe(200);
    }
    expect(version()).toBe(before);
  });

  test('is tested with at least 200 requests, and a write would be detected', async () => {
    expect(WARM_READS.length * TIMES).toBeGreaterThanOrEqual(200);
    const [audited] = READS.filter(({ id }) => id === AUDITED);
    if (!audited) throw new Error(`${AUDITED} is no operation`);
    const events = () => contentOfD1(stack.devDir).audit_events?.length ?? 0;
    const before = { version: version(), events: events() };
    expect((await callOperation(api, audited, ids)).status).toBe(200);
    expect(version()).not.toBe(before.version);
    expect(events()).toBe(before.events + 1);
  });

  test('writes nothing with a newer token after its first use', async () => {
    const newer = new Api(stack.url, await stack.token());
    await newer.get('/api/v1/projects');
    const before = version();
    for (let n = 0; n < TIMES; n++) expect((await newer.get('/api/v1/projects')).status).toBe(200);
    expect(version()).toBe(before);
  });
});
