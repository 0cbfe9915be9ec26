import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../support/eventually.ts';
import { Follower } from '../../support/host/follower.ts';
import { asClient } from '../../support/host/host-project.ts';
import { firstByDay } from '../../support/nightly.ts';
import { CATALOG, FOLDER, NEXT_VALUES } from './own-catalog.ts';

let follower: Follower;
beforeAll(async () => {
  follower = await Follower.start();
  // It reads past policies that are forced on its own tables.
  await follower.source.run('alter role app bypassrls');
});
afterAll(() => follower?.stop());

const owner = (sql: string) => asClient(follower.servers.host, 'direct', follower.main, 'owner', sql);

const CASES: [file: string, change: string, rows: string][] = [
  [
    'partitioned-keys.sql',
    "insert into event (at, code) select date '2025-12-20' + n, 'b' from generate_series(1, 30) n; update event set note = 'x' where id = 3; delete from event where id = 4",
    "select count(*)::int as n, md5(string_agg(t::text, '|' order by t::text)) as rows from event t",
  ],
  ['view-group.sql', 'insert into sale values (2, 1, 7)', 'select total from per_customer'],
  ['view-on-mview.sql', 'insert into sale values (2, 7)', 'select sum(amount) as n from sale'],
  [
    'two-parents.sql',
    "insert into thing (id, owner_id, note) values (8, 2, 'y')",
    'select count(*)::int as n from has_owner',
  ],
  ['forced-rls.sql', "insert into note values (3, 'a', 'z')", 'select count(*)::int as n from note'],
  ['domain-not-null.sql', "insert into item values (2, 'b')", 'select count(*)::int as n from item'],
];

test.each(firstByDay(2, CASES))(
  '%s is followed, and cut over with the catalog of its source',
  async (file, change, rows) => {
    const { source } = follower;
    await follower.renew();
    await source.run(
      `drop schema public cascade; create schema public authorization app; set role app; ${readFileSync(join(FOLDER, file), 'utf8')}`,
    );
    await follower.begin();
    await source.run(`set role app; ${change}`);
    // Policies hide its rows from the clients of the branch.
    const isHidden = file === 'forced-rls.sql';
    await eventually(async () => {
      if (isHidden) expect(await follower.status()).toMatchObject({ lag_bytes: 0 });
      else expect(await follower.here(rows)).toEqual(await source.run(rows));
    });
    expect(await follower.status()).toMatchObject({ state: 'following', problem: null });
    const { cut_over, findings } = await follower.run('follow.cutover', {
      ...follower.ids,
      job_id: randomUUID(),
      writes_refused: false,
    });
    expect([findings, cut_over?.rows]).toEqual([[], expect.any(Number)]);
    await source.run('begin read write; alter database shop reset default_transaction_read_only; commit');
    for (const sql of [CATALOG, NEXT_VALUES, ...(isHidden ? [] : [rows])])
      expect(await owner(sql)).toEqual(await source.run(sql));
    if (file === 'partitioned-keys.sql') {
      const again = `insert into event (id, at, code) overriding system value values (5, '2025-12-06', 'c')`;
      expect(
        await owner(`${again} on conflict (id, at) do update set note = 'again' returning note`),
      ).toEqual([{ note: 'again' }]);
      await expect(owner(again)).rejects.toMatchObject({ code: '23505' });
    }
    await follower.expectNothingLeft();
  },
);
