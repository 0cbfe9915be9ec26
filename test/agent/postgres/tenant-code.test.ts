import { expect, test } from 'vitest';
import { PROCESSES, processKind } from '../../../agent/postgres/tenant-code.ts';

test('a session of a branch has the kind of its way, and each kind is bounded as the others', () => {
  const session = {
    backend: 'client backend',
    database: 'db_shop_prod',
    login: `u_${'0'.repeat(32)}_rw`,
  };
  const kinds = (['network', 'local', 'agent'] as const).map((way) => processKind({ ...session, way }));
  expect(kinds).toEqual(['client', 'pooled', 'websocket']);
  expect(PROCESSES.websocket.bounds).toEqual(PROCESSES.client.bounds);
  expect(processKind({ ...session, database: 'bgmask_x', way: 'agent' })).toBeNull();
});
