import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { BANK, STATE, TRANSFER } from '../support/host/follower.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type SourceServer, slowTable, startSource } from '../support/source-server.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

describe.runIf(IS_NIGHTLY)('the process of an agent is killed and started again by its supervisor', () => {
  let source: SourceServer;
  let stack: Stack;
  let api: Api;
  let projectId: string;
  let path: string;
  beforeAll(async () => {
    source = await startSource();
    await source.run(`${BANK}; ${slowTable(5)}`);
    stack = await startStack({ env: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.1/32' } });
    api = new Api(stack.url, await stack.token({ tenant: 'killed' }));
    projectId = (await api.project('Killed')).id;
    path = `/api/v1/projects/${projectId}/follow`;
    await api.allow(projectId);
  });
  afterAll(async () => {
    await stack?.stop();
    await source?.stop();
  });

  const status = async () => (await api.get<{ state: string; problem: unknown }>(path)).body;
  const kill = async () => {
    const { agent } = stack.state.pids;
    await stack.kill('agent');
    await eventually(async () => expect(stack.state.pids.agent).not.toBe(agent));
    await stack.untilReady();
  };
  const here = async (sql: string) =>
    query((await api.credentials(projectId, 'main', '?role=read_only')).direct_url, sql);

  test('in the copy: it begins again, and main follows', async () => {
    expect(await api.post(path, { source_url: source.url() })).toMatchObject({ status: 202 });
    await eventually(async () => expect(await status()).toMatchObject({ state: 'copying' }));
    // The slow table is reached within this time.
    await sleep(3_000);
    await kill();
    await eventually(
      async () => expect(await status()).toMatchObject({ state: 'following', problem: null }),
      180,
    );
    expect(await here(STATE)).toEqual(await source.run(STATE));
  });

  test('while main follows: no change is lost or there twice', async () => {
    let isOver = false;
    const writing = (async () => {
      const client = await connect(source.url());
      while (!isOver) await client.query(TRANSFER);
      await client.end();
    })();
    for (let kills = 0; kills < 3; kills += 1) {
      await sleep(2_000);
      await kill();
    }
    isOver = true;
    await writing;
    await eventually(async () => expect(await here(STATE)).toEqual(await source.run(STATE)));
    await eventually(async () => expect(await status()).toMatchObject({ state: 'following', problem: null }));
  });

  test('at the end nothing is left at the source', async () => {
    expect((await api.delete(path)).status).toBe(202);
    await eventually(async () =>
      expect(
        await source.run(
          'select slot_name::text as name from pg_replication_slots union all select pubname from pg_publication',
        ),
      ).toEqual([]),
    );
  });
});
