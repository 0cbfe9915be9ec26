import { randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { readApplyError } from '../../../agent/transfer/apply-errors.ts';
import { disable } from '../../../agent/transfer/following.ts';
import { followName } from '../../../shared/protocol/transfer-operations.ts';
import { connect as connectTo } from '../../support/database.ts';
import { eventually } from '../../support/eventually.ts';
import { Follower, STATE, TRANSFER } from '../../support/host/follower.ts';
import type { TestHost } from '../../support/host/host.ts';
import { asClient, connect } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import {
  OTHER_LOGIN,
  SEES_NO_OTHERS,
  SEES_OTHERS,
  SOURCE_LOGIN,
  type SourceServer,
} from '../../support/source-server.ts';

/** Versions of sources. The first is that of the hosts. */
const SOURCES = firstByDay(1, [
  { version: '18', programs: undefined },
  { version: '15', programs: '/usr/lib/postgresql/15/bin' },
]);

/** Milliseconds. */
const CLONES = IS_NIGHTLY ? { count: 200, within: 2_400_000 } : { count: 2, within: 300_000 };

describe.each(SOURCES)('a source of version $version', ({ programs }) => {
  let follower: Follower;
  let source: SourceServer;
  let servers: TestHost;
  beforeAll(async () => {
    follower = await Follower.start(programs);
    ({ source, servers } = follower);
  });
  afterAll(() => follower?.stop());

  describe('main that follows', () => {
    beforeAll(async () => {
      await follower.renew();
      await follower.underLoad(() => follower.begin());
    });
    afterAll(() => follower.end());

    test('has every change of the source once, and its clients can only read', async () => {
      await follower.untilLevel();
      expect(await follower.status()).toMatchObject({
        state: 'following',
        problem: null,
        slot_bytes: expect.any(Number),
      });
      await eventually(async () =>
        expect(await follower.status()).toMatchObject({ lag_bytes: 0, lag_seconds: 0 }),
      );
      expect(servers.host.lags.present).toEqual({
        following: 1,
        stopped: 0,
        lag_seconds: 0,
        slot_bytes: expect.any(Number),
      });
      expect((await follower.status()).tables.map(({ table, state }) => [table, state]).toSorted()).toEqual(
        ['account', 'counter', 'transfer', 'visit'].map((table) => [table, 'following']),
      );
      for (const role of ['owner', 'read_write', 'read_only'] as const) {
        const client = await connect(servers.host, 'direct', follower.main, role);
        try {
          expect((await client.query('select n from counter')).rows).toHaveLength(1);
          await client.query('set default_transaction_read_only = off');
          for (const sql of [
            'insert into account values (99, 1)',
            'update counter set n = 0',
            'create table mine (n int)',
            'create temporary table mine (n int)',
            `set role "g_${follower.project.id.replaceAll('-', '')}_owner"`,
            `alter subscription "${followName(follower.project.id)}" disable`,
            "create subscription mine connection 'host=127.0.0.1' publication mine with (connect = false)",
          ])
            await expect(client.query(sql)).rejects.toThrow(/permission denied|must be owner/);
        } finally {
          await client.end();
        }
      }
      // The clients of the source can change rows of a table that names no rows in the log.
      await source.run('insert into visit values (now()); update visit set at = now()');
      const logs = join(servers.settings.PGDATA_DIR, 'log');
      for (const name of readdirSync(logs))
        expect(readFileSync(join(logs, name), 'utf8')).not.toContain(SOURCE_LOGIN.password.slice(0, 6));
    });

    test(
      'has branches that are the source at one commit, and have its next values',
      async () => {
        await follower.underLoad(async () => {
          for (let n = 0; n < CLONES.count; n += 1) {
            const branch = await follower.branch(String(n));
            const read = (sql: string) => asClient(servers.host, 'direct', branch, 'owner', sql);
            const [state] = await read(STATE);
            expect(state).toMatchObject({ sum: 50_000, transfers: state?.counted });
            const [next] = await read('insert into transfer (amount) values (1) returning id::int');
            expect(next?.id).toBeGreaterThan(Number(state?.last ?? 0));
            // What a subscription has left in the catalog keeps no table, and goes with it.
            await read('drop table account, transfer, counter, visit');
            expect(await read('select from pg_subscription_rel')).toEqual([]);
            await follower.project.drop(branch);
          }
        });
        await follower.untilLevel();
      },
      CLONES.within,
    );

    // The last one, because main stands still then.
    test('gets what is added at the source, and stops with the statements at another change', async () => {
      await source.run(
        `set role app; alter table account add column note text default 'none'; insert into account values (100, 0, 'new');
       create table book (id int primary key, title text not null); insert into book values (1, 'one')`,
      );
      await eventually(async () =>
        expect(await follower.here('select note from account where id = 100')).toEqual([{ note: 'new' }]),
      );
      // Nothing fails for a table that is not here: the comparison finds it.
      await eventually(async () =>
        expect(await follower.here('select title from book')).toEqual([{ title: 'one' }]),
      );
      await source.run(`insert into book values (2, 'two'); update book set title = 'uno' where id = 1`);
      await eventually(async () =>
        expect(await follower.here('select title from book order by id')).toEqual([
          { title: 'uno' },
          { title: 'two' },
        ]),
      );
      await eventually(async () =>
        expect(
          follower.reports
            .at(-1)
            ?.additions.map(({ statement }) => statement)
            .join(),
        ).toMatch(/note.*book/s),
      );
      // A value that does not fit here.
      await source.run(
        `alter table account alter column balance type text; update account set balance = 'much' where id = 1`,
      );
      await eventually(async () =>
        expect(await follower.status()).toMatchObject({
          state: 'stopped',
          problem: { code: 'schema', statement: expect.stringContaining('balance') },
        }),
      );
      await eventually(async () =>
        expect(follower.reports.at(-1)).toMatchObject({ state: 'stopped', problem: { code: 'schema' } }),
      );
      expect(JSON.stringify(follower.reports)).not.toContain('much');
    });
  });

  describe('for a project of its own', () => {
    beforeEach(() => follower.renew());

    test.runIf(IS_NIGHTLY)(
      'the source is restarted, and an agent is killed between the two steps of a clone: it continues',
      async () => {
        await follower.begin();
        for (let n = 0; n < 5; n += 1) await source.run(TRANSFER);
        await follower.untilLevel();
        await source.end();
        // Sequences are taken from the largest keys meanwhile.
        const branch = await follower.branch('away');
        const inserted = 'insert into transfer (amount) values (1) returning id::int';
        expect(await asClient(servers.host, 'direct', branch, 'owner', inserted)).toEqual([{ id: 6 }]);
        await source.start();
        await follower.project.drop(branch);
        await follower.underLoad(async () => {
          const [followed] = await servers.query<{ project_id: string; database: string }>(
            'select project_id, database from following',
          );
          if (followed) await disable(servers.host, followed);
        });
        await follower.untilLevel();
        await follower.end();
      },
    );

    test.runIf(IS_NIGHTLY)('an import has the rows and the next values', async () => {
      for (let n = 0; n < 5; n += 1) await source.run(TRANSFER);
      await follower.copy(follower.copyParams({ follow: null }));
      expect(await follower.here(STATE)).toEqual(await source.run(STATE));
      const insert = 'insert into transfer (amount) values (1) returning id::int';
      expect(await asClient(servers.host, 'direct', follower.main, 'owner', insert)).toEqual([{ id: 6 }]);
      await follower.expectNothingLeft();
    });

    test.runIf(IS_NIGHTLY)(
      'without room the branch grows no more, until there is some and it is resumed',
      async () => {
        await follower.begin();
        const block = (since: string) =>
          servers.query(
            `update project set write_blocked_since = ${since} where project_id = '${follower.project.id}'`,
          );
        const stopped = { state: 'stopped', problem: { code: 'quota' } };
        await block('clock_timestamp()');
        await eventually(async () => expect(await follower.status()).toMatchObject(stopped));
        await eventually(async () =>
          expect(servers.host.lags.present).toMatchObject({ following: 0, stopped: 1 }),
        );
        await source.run('set role app; insert into counter values (7, 0)');
        await eventually(async () => expect(servers.host.lags.present.lag_seconds).toBeGreaterThan(1));
        expect(await follower.run('follow.resume', { ...follower.ids, apply_changes: false })).toMatchObject(
          stopped,
        );
        expect(await follower.here('select id from counter where id = 7')).toEqual([]);
        await block('null');
        expect(await follower.run('follow.resume', { ...follower.ids, apply_changes: false })).toMatchObject({
          state: 'following',
          problem: null,
        });
        await eventually(async () =>
          expect(await follower.here('select id from counter where id = 7')).toEqual([{ id: 7 }]),
        );
        await follower.end();
      },
    );

    test.runIf(IS_NIGHTLY)(
      'a cut-over loses no commit of a login whose sessions are hidden from it',
      async () => {
        await follower.begin();
        const writer = await connectTo(source.url({ username: OTHER_LOGIN }));
        let acknowledged = 0;
        const writing = (async () => {
          for (;;) {
            await writer.query('insert into transfer (amount) values (7)');
            acknowledged += 1;
            await sleep(20);
          }
        })().catch(() => {});
        const cutover = { ...follower.ids, job_id: randomUUID(), writes_refused: false, is_compared: false };
        await source.run(SEES_NO_OTHERS);
        const refused = await follower.run('follow.cutover', cutover);
        expect(refused).toMatchObject({
          cut_over: null,
          findings: [{ problem: 'rights', message: expect.stringContaining(OTHER_LOGIN) }],
        });
        await source.run(`${SEES_OTHERS}; alter role ${OTHER_LOGIN} set default_transaction_read_only = off`);
        expect(await follower.run('follow.cutover', cutover)).toMatchObject({
          findings: [{ statement: expect.stringContaining(`ALTER ROLE "${OTHER_LOGIN}" RESET`) }],
        });
        await source.run(`alter role ${OTHER_LOGIN} reset default_transaction_read_only`);
        const before = acknowledged;
        await eventually(async () => expect(acknowledged).toBeGreaterThan(before));
        expect((await follower.run('follow.cutover', cutover)).cut_over).not.toBeNull();
        await writing;
        const [there] = await follower.here('select count(*)::int as n from transfer');
        // The answer of the last one can be lost with the session.
        expect([acknowledged, acknowledged + 1]).toContain(there?.n);
        await source.run('begin read write; alter database shop reset default_transaction_read_only; commit');
        await follower.project.drop(follower.main);
      },
    );

    test.runIf(IS_NIGHTLY)('a cut-over under load loses nothing, and can be called off before', async () => {
      await follower.begin();
      const cutover = { ...follower.ids, job_id: randomUUID(), writes_refused: false };
      expect(await follower.run('follow.cancel_cutover', follower.ids)).toEqual({ cancelled: false });
      // It waits for changes that are not applied, which no watch lets continue.
      await follower.stopWatch();
      await disable(servers.host, follower.ids);
      await source.run(TRANSFER);
      const waiting = follower.run('follow.cutover', cutover);
      await eventually(async () =>
        expect(await servers.query('select cutover from following where refused_at is not null')).toEqual([
          { cutover: 'refusing' },
        ]),
      );
      await eventually(async () =>
        expect(await source.run('show default_transaction_read_only')).toEqual([
          { default_transaction_read_only: 'on' },
        ]),
      );
      expect(await follower.run('follow.cancel_cutover', follower.ids)).toEqual({ cancelled: true });
      follower.startWatch();
      expect(await waiting).toMatchObject({
        cut_over: null,
        findings: [{ message: 'The cut-over was called off.' }],
      });
      await source.run(TRANSFER);
      await follower.untilLevel();
      const result = await follower.underLoad(async () => {
        await eventually(async () =>
          expect(Number((await follower.here('select n from counter'))[0]?.n)).toBeGreaterThan(20),
        );
        return follower.run('follow.cutover', cutover);
      });
      expect(result.findings).toEqual([]);
      expect(result.cut_over).toMatchObject({ dropped_at_source: true, message: null, sequences: 1 });
      expect(await follower.run('follow.cutover', cutover)).toEqual(result);
      expect(await follower.here(STATE)).toEqual(await source.run(STATE));
      const [next] = await asClient(
        servers.host,
        'pooled',
        follower.main,
        'read_write',
        'insert into transfer (amount) values (1) returning id::int',
      );
      const [last] = await source.run('select last_value::int as last from transfer_id_seq');
      expect(next?.id).toBe(Number(last?.last) + 1);
      await asClient(servers.host, 'direct', follower.main, 'owner', 'create table mine (n int)');
      await expect(source.run('set role app; insert into counter values (2, 0)')).rejects.toThrow(
        /read-only/,
      );
      expect(await follower.atSource()).toEqual([]);
      expect(await follower.status()).toMatchObject({ state: 'absent' });
      expect(await servers.query('select from restored_login')).toEqual([]);
      await source.run('begin read write; alter database shop reset default_transaction_read_only; commit');
      await follower.project.drop(follower.main);
    });
  });
});

test('an error of a worker is about a change only if it names the transaction', () => {
  const line = {
    backend_type: 'logical replication apply worker',
    error_severity: 'ERROR',
    state_code: '22P02',
    message: 'invalid input syntax for type integer: "secret"',
    context:
      'processing remote data for replication origin "pg_16400" during message type "UPDATE" for replication target relation "public.account" in transaction 745, finished at 0/1552F60',
  };
  expect(readApplyError(JSON.stringify(line))).toEqual({
    subscription: '16400',
    sqlstate: '22P02',
    table: 'public.account',
    message: 'SQLSTATE 22P02',
  });
  const away = { ...line, state_code: '08006', message: 'could not receive data from WAL stream' };
  expect(readApplyError(JSON.stringify(away))).toBeNull();
  expect(readApplyError(JSON.stringify({ ...line, context: undefined }))).toBeNull();
});
