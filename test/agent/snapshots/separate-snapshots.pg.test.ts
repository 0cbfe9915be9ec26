import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runSeparationLoop } from '../../../agent/snapshots/separate-snapshots.ts';
import { copyDatabaseName } from '../../../agent/snapshots/snapshot-databases.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

test('a replaced snapshot that a full disk kept from being dropped is dropped while the agent runs', async () => {
  const name = copyDatabaseName(randomUUID());
  await servers.query(`CREATE DATABASE ${name}`);
  const ending = new AbortController();
  const loop = runSeparationLoop({ ...servers.host, cloneMethod: 'reflink' }, ending.signal);
  await eventually(async () =>
    expect(await servers.query('SELECT FROM pg_database WHERE datname = $1', [name])).toEqual([]),
  );
  ending.abort();
  await loop;
});
