import type { Client } from 'pg';
import { beforeAll, expect, test } from 'vitest';
import { separateSnapshots } from '../../../agent/snapshots/separate-snapshots.ts';
import { type History, historyOf } from '../../support/host/histories.ts';
import type { ComparingHost, Counts } from '../../support/host/host-differences.ts';
import { type Branch, connect } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

/** Histories that share the two databases of a round. */
const PER_ROUND = IS_NIGHTLY ? 40 : 12;
const ROUNDS = IS_NIGHTLY ? 25 : 1;

export function describeHistories(open: () => Promise<ComparingHost>): void {
  let host: ComparingHost;
  beforeAll(async () => {
    host = await open();
  });

  /**
   * A branch, and what it is compared with; `between` runs on a database in between, of which a branch is made.
   */
  type Descent = (between: (branch: Branch) => Promise<void>) => Promise<{ branch: Branch; other: Branch }>;

  const DESCENTS: readonly Descent[] = [
    async () => ({ branch: await host.branch(host.main), other: host.main }),
    async (between) => {
      const middle = await host.branch(host.main);
      await between(middle);
      const branch = await host.branch(middle);
      await host.project.drop(middle);
      return { branch, other: host.main };
    },
    async (between) => {
      const other = await host.branch(host.main);
      await between(host.main);
      return { branch: await host.branch(host.main), other };
    },
    async () => {
      const snapshot = await host.snapshot(host.main);
      await separateSnapshots(host.servers.host);
      return { branch: await host.branch(snapshot), other: host.main };
    },
  ];

  async function restart(): Promise<void> {
    await host.servers.end('postgres', 'SIGKILL');
    await host.servers.start('postgres');
  }

  const hasMore = async (client: Client, { table }: History) => {
    const { rowCount } = await client.query(
      "select from pg_attribute where attrelid = $1::regclass and attname = 'more' and not attisdropped",
      [table],
    );
    return rowCount === 1;
  };

  /** The rows of a table as texts by their key, or by themselves. */
  async function rowsOf(
    client: Client,
    { table, key }: History,
    columns: string,
  ): Promise<Map<string, string>> {
    const row = `row(${columns})::text`;
    const { rows } = await client.query<{ key: string; row: string }>(
      `select ${key ? `row(${key})::text` : `md5(${row})`} as key, ${row} as row from ${table}`,
    );
    const found = new Map<string, string>();
    for (const { key: identity, row } of rows) {
      let name = identity;
      // Equal rows without a key.
      for (let copy = 1; found.has(name); copy += 1) name = `${identity}#${copy}`;
      found.set(name, row);
    }
    return found;
  }

  /** Counts of a table that is compared here, row by row. */
  async function expectedOf(branch: Client, other: Client, history: History): Promise<string> {
    const sides = [branch, other];
    const haveMore = await Promise.all(sides.map((side) => hasMore(side, history)));
    // Columns of one side only are a difference of the schemas.
    const columns = haveMore.every(Boolean) ? 'id, n, note, big, more' : 'id, n, note, big';
    const read = sides.map((side) => rowsOf(side, history, columns));
    const [after, before] = (await Promise.all(read)) as [Map<string, string>, Map<string, string>];
    const inserted = [...after.keys()].filter((key) => !before.has(key)).length;
    const deleted = [...before.keys()].filter((key) => !after.has(key)).length;
    const updated = [...after].filter(([key, row]) => before.has(key) && before.get(key) !== row).length;
    return `${inserted}/${updated}/${deleted}`;
  }

  test.each(Array.from({ length: ROUNDS }, (_, round) => round))(
    'round %i: every method finds what differs',
    async (round) => {
      const histories = Array.from({ length: PER_ROUND }, (_, at) => historyOf(round * PER_ROUND + at + 1));
      await host.runEach(
        host.main,
        histories.flatMap(({ create }) => create),
      );
      const descent = DESCENTS[round % DESCENTS.length] as Descent;
      const between = histories.map(({ table }) => `update ${table} set note = 'between' where id % 7 = 1`);
      const { branch, other } = await descent((middle) => host.runEach(middle, between));
      for (const half of [0, 1] as const) {
        await Promise.all([
          host.runEach(
            branch,
            histories.flatMap((history) => history.branch[half]),
          ),
          host.runEach(
            other,
            histories.flatMap((history) => history.other[half]),
          ),
        ]);
        if (half === 0 && round % 3 === 0) await restart();
      }
      const found: Counts[] = [];
      for (const method of host.methods) found.push((await host.compareBy(method, branch, other)).counts);
      for (const counts of found) expect(counts).toEqual(found.at(-1));
      const isPartition = (table: string) => found[0]?.[`${table}_a`] ?? found[0]?.[`${table}_b`];
      let differing = 0;
      const clients = await Promise.all(
        [branch, other].map((side) => connect(host.servers.host, 'direct', side, 'owner')),
      );
      const [own, theirs] = clients as [Client, Client];
      for (const history of histories) {
        // A row that moved to another partition is deleted there and inserted here.
        if (isPartition(history.table)) continue;
        const expected = await expectedOf(own, theirs, history);
        expect([history.table, found[0]?.[history.table] ?? '0/0/0']).toEqual([history.table, expected]);
        if (expected !== '0/0/0') differing += 1;
      }
      await Promise.all(clients.map((client) => client.end()));
      expect(differing).toBeGreaterThan(PER_ROUND / 3);
      await host.runEach(
        host.main,
        histories.map(({ table }) => `drop table ${table}`),
      );
    },
  );
}
