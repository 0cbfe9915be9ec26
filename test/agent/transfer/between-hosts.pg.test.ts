import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { followName } from '../../../shared/protocol/transfer-operations.ts';
import { connect as connectTo } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { STATE, TRANSFER } from '../../support/host/follower.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';

/** The operations of a move of `main` from one host to another, in the order of its job. */

const DATABASE = 'db_moving_prod';
let former: TestHost;
let next: TestHost;

beforeAll(async () => {
  former = await startHost();
  next = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
});
afterAll(async () => {
  await next?.stop();
  await former?.stop();
});

const BANK = `
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0)`;

test('main moves under load with its logins, and every commit arrives once', async () => {
  const project = new Project(former.host);
  const main = await project.create(DATABASE, null);
  await asClient(former.host, 'direct', main, 'owner', BANK);

  // The same branch with the same passwords, and nothing in it yet.
  const there = new Project(next.host, undefined, project.id);
  const copy: Branch = { ...main, job_id: randomUUID() };
  await Promise.all([there.prepare(copy), there.clone(copy, null)]);
  await there.finalize(copy);

  const job_id = randomUUID();
  const password = makePassword();
  const networks = ['127.0.0.1/32'];
  const verifier = await scramVerifier(password);
  await runOperation(former.host, 'move.admit', { job_id, project_id: project.id, verifier, networks });
  const source_url = `postgresql://mv_${job_id.replaceAll('-', '')}:${password}@127.0.0.1:${former.settings.POSTGRES_PORT}/${DATABASE}`;
  const follow = { slot: followName(project.id), publication: null };
  const of = { project_id: project.id, branch_id: main.branch_id, database: DATABASE };
  const run = <M extends Method>(method: M, more: object): Promise<MethodResult<M>> =>
    runOperation(next.host, method, { ...of, ...more });

  const clients = [1, 2].map(async () => {
    const client = await connect(former.host, 'direct', main, 'read_write');
    let committed = 0;
    try {
      for (;;) {
        await client.query(TRANSFER);
        committed += 1;
      }
    } catch {
      return committed;
    } finally {
      await client.end().catch(() => {});
    }
  });

  const load = { job_id, source_url, tables: null, room_bytes: 2 ** 30, jobs: 2, busy_wait: 1_000 };
  const { copied, findings } = await run('transfer.copy', { ...load, follow });
  expect(copied, JSON.stringify(findings)).not.toBeNull();
  await run('reset.swap', { job_id, snapshot_id: randomUUID() });
  await run('follow.start', { source_url, ...follow, tables: null });
  await eventually(async () =>
    expect(await run('follow.status', {})).toMatchObject({
      state: 'following',
      lag_bytes: expect.any(Number),
    }),
  );

  // The fence: the former host refuses and ends its clients.
  project.revision += 1;
  await runOperation(former.host, 'access.apply', {
    project_id: project.id,
    access: { revision: project.revision, tenant: project.id, rules: [], closed: [main.branch_id] },
  });
  const cut = await run('follow.cutover', { job_id, writes_refused: true });
  expect(cut.cut_over, JSON.stringify(cut.findings)).toMatchObject({ dropped_at_source: true });
  const committed = (await Promise.all(clients)).reduce((sum, one) => sum + one, 0);

  await expect(
    connectTo(`postgresql://${main.branch_id}@127.0.0.1:${former.settings.POSTGRES_PORT}/${DATABASE}`),
  ).rejects.toThrow();
  expect(await runOperation(former.host, 'move.release', { job_id, project_id: project.id })).toEqual({
    released: true,
  });
  const [state] = await asClient(next.host, 'direct', copy, 'read_write', STATE);
  // A commit whose answer was lost with its session may have happened.
  expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
  expect(Number(state?.counted)).toBeGreaterThanOrEqual(committed);
  expect(Number(state?.counted)).toBeLessThanOrEqual(committed + clients.length);
  const insert = 'insert into transfer (amount) values (1) returning id::int';
  const [inserted] = await asClient(next.host, 'direct', copy, 'read_write', insert);
  expect(inserted?.id).toBeGreaterThan(Number(state?.last));
  expect(await former.query('select slot_name from pg_replication_slots')).toEqual([]);
});
