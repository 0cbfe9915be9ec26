import type pg from 'pg';
import { afterAll, describe, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { percentile } from '../support/percentile.ts';
import type { Stack } from '../support/stack/stack.ts';
import { SteadyClient } from '../support/steady-client.ts';

/**
 * A tenant attacks on a host whose standby receives everything that is written. The commits of another tenant wait until the
 * standby has them on its disk, after all that was written before.
 */

interface HostBody {
  id: string;
  name: string;
  members: { host_id: string; lag_bytes: number | null }[];
}

let stack: Stack;
let api: Api;
let operator: Api;
let projectId: string;
let session: pg.Client;
let ledger: SteadyClient;
let rowMs: number;
const confirmed: number[] = [];

const urlOf = async () => (await api.credentials(projectId, 'main')).direct_url;
const standby = async () => {
  const { body } = await operator.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
  return body.hosts.find(({ name }) => name === 'local-standby') as HostBody;
};
const isConfirming = () =>
  eventually(async () => {
    const { body } = await api.get<{ durability_state: string }>(`/api/v1/projects/${projectId}`);
    expect(body.durability_state).toBe('confirming');
    const { id, members } = await standby();
    const { lag_bytes } = members.find(({ host_id }) => host_id === id) ?? { lag_bytes: null };
    // The victim writes all the time.
    expect(lag_bytes ?? Number.POSITIVE_INFINITY).toBeLessThan(2 ** 20);
  });

/** Milliseconds that the commit of a row of 10 MB takes, which is the time of its WAL to the disk of the standby. */
async function timeOfRow(): Promise<number> {
  await session.query('create table huge (data text); alter table huge alter data set storage external');
  const times: number[] = [];
  while (times.length < 20) {
    await session.query(
      "begin; set local synchronous_commit = on; insert into huge values (repeat('x', 10 << 20))",
    );
    const begun = performance.now();
    await session.query('commit');
    times.push(performance.now() - begun);
  }
  await session.query('drop table huge');
  return percentile(times, 0.5);
}

async function prepare(started: Stack): Promise<void> {
  stack = started;
  operator = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
  api = new Api(stack.url, await stack.token({ tenant: 'ledger', email: 'owner@ledger.example' }));
  const project = await api.project('Ledger');
  projectId = project.id;
  await api.allow(projectId);
  // The standby may still be copying.
  await eventually(async () =>
    expect((await api.patch(`/api/v1/projects/${projectId}`, { durability: 'sync' })).status).toBe(200),
  );
  await isConfirming();
  session = await connect(await urlOf());
  await session.query('create table entry (id integer primary key, text text)');
  rowMs = await timeOfRow();
  ledger = await SteadyClient.start(async () => {
    const id = confirmed.length;
    await session.query('insert into entry values ($1, md5($1::int::text))', [id]);
    confirmed.push(id);
  });
}

describe.runIf(IS_NIGHTLY)('on a host with a standby', () => {
  afterAll(async () => {
    await ledger?.end();
    await session?.end().catch(() => {});
  });

  describeAttacks(
    ['huge rows', 'schema changes', 'locks on tables', 'transaction ids', 'notifications'],
    () => ({ restarts: false, env: { STANDBY: '1' }, prepare }),
    async (name) => {
      // PostgreSQL sends WAL in its order: one row is on its way, another one is written meanwhile, and the standby applies a third one.
      ledger.expectUndisturbed(name === 'huge rows' ? 3 * rowMs : 0);
      await isConfirming();
    },
  );

  test('afterwards the standby takes over with every confirmed row, as it was written', async () => {
    await ledger.end();
    expect(ledger.failures).toEqual([]);
    expect(confirmed.length).toBeGreaterThan(1_000);
    const { id } = await standby();
    expect((await operator.post(`/platform/v1/hosts/${id}/promote`, {})).status).toBe(200);
    const found = await query<{ rows: number; wrong: number }>(
      await urlOf(),
      'select count(*)::int as rows, (count(*) filter (where text <> md5(id::text)))::int as wrong from entry',
    );
    expect(found).toEqual([{ rows: confirmed.length, wrong: 0 }]);
  });
});
