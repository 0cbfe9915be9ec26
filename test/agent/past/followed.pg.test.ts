import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { test } from 'vitest';
import { type RecoveryStep, recoverDatabase } from '../../../agent/past/recover.ts';
import { eventually } from '../../support/eventually.ts';
import { Follower } from '../../support/host/follower.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

test.runIf(IS_NIGHTLY)('a followed source sees no connection from a recovery', async () => {
  const follower = await Follower.start(undefined, undefined, { RECOVERY_WINDOW_HOURS: '24' });
  try {
    await follower.renew();
    await follower.begin();
    const { host, query } = follower.servers;
    await host.past.copyBase({ fast: true });
    await follower.source.run('update counter set n = n + 1');
    const [row] = await query<{ at: string }>(
      `select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at`,
    );
    // The original is away, so a session that asks for the slot is that of the copy.
    await follower.stopWatch();
    const subscriptions = () =>
      query<{ name: string; database: string }>(
        'select subname as name, datname as database from pg_subscription join pg_database as d on d.oid = subdbid',
      );
    assert.equal((await subscriptions()).length, 1);
    await query('update pg_subscription set subenabled = false');
    await query("select pg_terminate_backend(pid) from pg_stat_activity where backend_type ~ '^logical'");
    await eventually(async () =>
      assert.deepEqual(await follower.source.run('select from pg_stat_replication'), []),
    );
    const isOver = new AbortController();
    const seen: unknown[] = [];
    const watching = (async () => {
      while (!isOver.signal.aborted) {
        seen.push(
          ...(await follower.source.run(
            "select application_name from pg_stat_activity where backend_type = 'walsender' union all select slot_name from pg_replication_slots where active",
          )),
        );
        await sleep(2);
      }
    })();
    const { project_id, branch_id } = follower.main;
    const params = {
      job_id: randomUUID(),
      project_id,
      branch_id,
      snapshot_id: randomUUID(),
      at: row?.at ?? '',
      room_bytes: 2 ** 30,
      jobs: 1,
    };
    const [{ secret = '' } = {}] = await query<{ secret: string }>(
      'select subconninfo as secret from pg_subscription',
    );
    const holding: Partial<Record<RecoveryStep, boolean>> = {};
    const result = await recoverDatabase(host, params, undefined, async (step, folder) => {
      holding[step] =
        spawnSync('grep', ['--recursive', '--quiet', '--fixed-strings', secret, folder]).status === 0;
    });
    isOver.abort();
    await watching;
    assert(result.recovered, JSON.stringify(result));
    assert.deepEqual(seen, []);
    // The address of the source and its password are in no file when code of the tenant can run.
    assert.deepEqual(
      [secret !== '', holding.copied, holding.opened, holding.filled],
      [true, true, false, false],
    );
  } finally {
    await follower.stop();
  }
});
