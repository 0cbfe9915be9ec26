import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { readDifferences } from '../../../agent/access/networks.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { Source } from '../../../agent/transfer/source-address.ts';
import { inSource, openReplicationSession } from '../../../agent/transfer/source-session.ts';
import { makePublications, makeSlot } from '../../../agent/transfer/source-slot.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { followName } from '../../../shared/protocol/transfer-operations.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, Project } from '../../support/host/host-project.ts';

let servers: TestHost;
let project: Project;
let main: Branch;
let neighbour: Branch;

beforeAll(async () => {
  servers = await startHost();
  // Nobody connects from here by their rules.
  project = new Project(servers.host, [{ branch_id: null, cidr: '192.0.2.0/24' }]);
  main = await project.create('db_moving_prod', null);
  neighbour = await new Project(servers.host).create('db_staying_prod', null);
});
afterAll(() => servers?.stop());

const password = makePassword();
const job_id = randomUUID();
const LOGIN = `mv_${job_id.replaceAll('-', '')}`;

const admit = async (networks = ['127.0.0.1/32']) =>
  runOperation(servers.host, 'move.admit', {
    job_id,
    project_id: project.id,
    verifier: await scramVerifier(password),
    networks,
  });
const release = () => runOperation(servers.host, 'move.release', { job_id, project_id: project.id });

const source = (database = main.database): Source => ({
  address: '127.0.0.1',
  host: '127.0.0.1',
  port: servers.host.settings.POSTGRES_PORT,
  user: LOGIN,
  password,
  database,
  mustVerify: false,
});
/** As the other host connects. @returns the name that it has, or what is wrong */
async function read(database?: string): Promise<unknown> {
  const found = await inSource({}, source(database), 10_000, async ({ session, tls }) => {
    const { rows } = await session.query('SELECT current_user::text AS name');
    return [rows[0], tls];
  });
  return found.ok ? found.value : found.failure.problem;
}

test('another host reads a project with a login of its own, from its networks only, until it is released', async () => {
  expect(await read()).not.toEqual([{ name: LOGIN }, 'channel_binding']);
  await admit(['192.0.2.7/32']);
  expect(await read()).not.toEqual([{ name: LOGIN }, 'channel_binding']);
  await admit();
  await admit();
  expect(await read()).toEqual([{ name: LOGIN }, 'channel_binding']);
  // The login of one project reads no other.
  expect(await read(neighbour.database)).not.toEqual([{ name: LOGIN }, 'channel_binding']);
  expect(await readDifferences(servers.host.postgres, [])).toEqual([]);
  await expect(asClient(servers.host, 'direct', main, 'owner', 'select 1')).rejects.toThrow('pg_hba.conf');

  const opened = await openReplicationSession({}, source(), 'channel_binding');
  const slot = followName(project.id);
  expect(await makeSlot(opened.session, slot)).not.toBe('');
  expect(await release()).toEqual({ released: true });
  opened.end();
  expect(await servers.query('select slot_name from pg_replication_slots')).toEqual([]);
  expect(await servers.query("select rolname from pg_roles where rolname ~ '^mv_'")).toEqual([]);
  expect(await read()).not.toEqual([{ name: LOGIN }, 'channel_binding']);
  expect(await release()).toEqual({ released: false });
});

test('it may publish what the owners of the project have, and nothing is left when it has dropped that', async () => {
  const open = new Project(servers.host);
  const branch = await open.create('db_public_prod', null);
  await asClient(servers.host, 'direct', branch, 'owner', 'create table item (id int primary key)');
  const ofMove = { job_id, project_id: open.id };
  const verifier = await scramVerifier(password);
  await runOperation(servers.host, 'move.admit', { ...ofMove, verifier, networks: ['127.0.0.1/32'] });
  const slot = followName(open.id);
  const made = await inSource(
    {},
    source(branch.database),
    10_000,
    async ({ session }) => {
      await makePublications(session, slot, [{ schema: 'public', name: 'item', follows: 'all' }]);
      const { rows } = await session.query('SELECT tablename FROM pg_publication_tables');
      for (const { pubname } of (await session.query('SELECT pubname FROM pg_publication')).rows)
        await session.query(`DROP PUBLICATION ${pubname}`);
      return rows;
    },
    { mode: 'change' },
  );
  expect(made).toMatchObject({ ok: true, value: [{ tablename: 'item' }] });
  await runOperation(servers.host, 'move.release', ofMove);
  expect(await servers.query("select rolname from pg_roles where rolname ~ '^mv_'")).toEqual([]);
});
