import { mkdtempSync, rmSync } from 'node:fs';
import { createConnection, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { startHostWithProject } from '../../support/host/host-project.ts';

let started: Awaited<ReturnType<typeof startHostWithProject>>;
beforeAll(async () => {
  started = await startHostWithProject('db_shop_prod', 'create table note (id int primary key)');
});
afterAll(() => started?.servers.stop());

/** A proxy of PostgreSQL's socket that drops everything a client sends after its login. @returns its folder */
async function silentSocket({
  POSTGRES_SOCKET_DIR,
  POSTGRES_PORT,
}: {
  POSTGRES_SOCKET_DIR: string;
  POSTGRES_PORT: number;
}) {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-silent-'));
  const name = `.s.PGSQL.${POSTGRES_PORT}`;
  const sockets: Socket[] = [];
  const server = createServer((client) => {
    const real = createConnection(join(POSTGRES_SOCKET_DIR, name));
    sockets.push(client, real);
    for (const socket of [client, real]) socket.on('error', () => {});
    client.once('data', (login) => real.write(login));
    real.pipe(client);
  });
  await new Promise<void>((resolve) => server.listen(join(folder, name), resolve));
  return {
    folder,
    close: () => {
      for (const socket of sockets) socket.destroy();
      server.close();
      rmSync(folder, { recursive: true });
    },
  };
}

test('an operation ends in time although the server says nothing after the login', async () => {
  const { servers, main } = started;
  const { host } = servers;
  const silent = await silentSocket(host.settings);
  const frozen = { ...host, settings: { ...host.settings, POSTGRES_SOCKET_DIR: silent.folder } };
  const { branch_id, database } = main;
  const table = { branch_id, database, schema: 'public', table: 'note' };
  const params = { ...table, limit: 1, offset: 0, filter: [], order: [] };
  try {
    await expect(runOperation(frozen, 'row.list', params)).rejects.toMatchObject({
      code: 'TIME_LIMIT_REACHED',
    });
  } finally {
    silent.close();
  }
});
