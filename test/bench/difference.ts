import { ComparingHost } from '../support/host/host-differences.ts';
import type { Branch } from '../support/host/host-project.ts';
import type { Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';

const DISK_BYTES = 16 * 2 ** 30;
/** For a quick check of the benchmark itself. */
const SCALE = Number(process.env.BENCH_DIFFERENCE_SCALE ?? 1);
const ROWS = Math.round(6_600_000 * SCALE);
const CHANGES = 250;
const ROUNDS = 5;
/** For a comparison of both tables in full. */
const WITHIN_MS = 15 * 60_000;
const LIMIT = 0.02;
const CHANGE_COUNTS = [1, 10, 100, 1_000, 10_000];
const SIZES = [0.05, 0.2, 1];

const METHOD = `Tables of about 150 bytes a row with a primary key, on XFS with reflink. Of each table a branch was made, in \
which single rows all over the table were changed. Each comparison is one call of the agent: it takes both snapshots, \
makes a checkpoint, finds the blocks, reads the rows on both sides and matches them. The full comparison reads both \
tables in the order of the key. The cases alternate in ${ROUNDS} rounds, and the medians are compared.`;

/** Measures what a difference of rows costs. @param signal aborts it */
export async function measureDifference(signal: AbortSignal): Promise<Report> {
  const host = await ComparingHost.start(DISK_BYTES);
  const { main } = host;
  try {
    for (const [at, size] of SIZES.entries()) {
      await host.run(main, `create table t${at} (id int primary key, n int not null, body text not null)`);
      await host.run(
        main,
        `insert into t${at} select n, 0, repeat(md5(n::text), 3) || n from generate_series(1, ${Math.round(ROWS * size)}) n`,
      );
      await host.run(main, `vacuum (freeze, analyze) t${at}`);
    }
    const large = SIZES.length - 1;
    const changed = async (table: number, count: number) => {
      signal.throwIfAborted();
      const branch = await host.branch(main);
      const rows = Math.round(ROWS * (SIZES[table] ?? 1));
      await host.run(
        branch,
        `update t${table} set n = n + 1 where id in (select 1 + (n::bigint * 7919 * 101) % ${rows} from generate_series(1, ${count}) n)`,
      );
      return branch;
    };
    const comparison =
      (branch: Branch, method: 'wal_summary' | 'extents' | 'full', table: number, count: number) => () => {
        signal.throwIfAborted();
        return timed(async () => {
          const { counts } = await host.compareBy(method, branch, main, WITHIN_MS);
          if (counts[`t${table}`] !== `0/${count}/0`) throw new Error(`found ${JSON.stringify(counts)}`);
        });
      };
    const branch = await changed(large, CHANGES);
    const methods = await runInterleaved(ROUNDS, {
      'blocks by WAL summaries': comparison(branch, 'wal_summary', large, CHANGES),
      'blocks by extents': comparison(branch, 'extents', large, CHANGES),
    });
    // One round takes longer than all others together.
    const full: number[] = [];
    for (let round = 0; round < 2; round += 1) full.push(await comparison(branch, 'full', large, CHANGES)());
    const byCount: Record<string, () => Promise<number>> = {};
    for (const count of CHANGE_COUNTS.filter((one) => one * 100 < ROWS))
      byCount[`${count.toLocaleString('en')} changed rows`] = comparison(
        await changed(large, count),
        'wal_summary',
        large,
        count,
      );
    const counts = await runInterleaved(ROUNDS, byCount);
    const bySize: Record<string, () => Promise<number>> = {};
    for (const [at, size] of SIZES.entries())
      bySize[`${Math.round(ROWS * size).toLocaleString('en')} rows`] = comparison(
        await changed(at, CHANGES),
        'wal_summary',
        at,
        CHANGES,
      );
    const sizes = await runInterleaved(ROUNDS, bySize);
    const [{ bytes } = { bytes: '0' }] = await host.run(main, `select pg_table_size('t${large}') as bytes`);
    const [server] = await host.servers.query<{ server_version: string }>('SHOW server_version');
    const goal = (name: keyof typeof methods, limit: number | null) => ({
      name: `${CHANGES} changes, ${name} ÷ full comparison`,
      measured: median(methods[name]) / median(full),
      limit,
      unit: '×' as const,
    });
    const smallest = Object.values(sizes)[0] ?? [];
    return {
      title: 'Row differences',
      method: METHOD,
      setting: {
        PostgreSQL: server?.server_version ?? '',
        'largest table': `${ROWS.toLocaleString('en')} rows, ${Math.round(Number(bytes) / 2 ** 20)} MB`,
      },
      goals: [
        goal('blocks by WAL summaries', LIMIT),
        goal('blocks by extents', null),
        {
          name: `${CHANGES} changes, largest ÷ smallest table`,
          measured: median(Object.values(sizes).at(-1) ?? []) / median(smallest),
          limit: null,
          unit: '×',
        },
      ],
      times: {
        [`${CHANGES} changed rows in the largest table`]: { ...methods, 'full comparison': full },
        'By the number of changes, in the largest table': counts,
        [`By the size of the table, ${CHANGES} changed rows`]: sizes,
      },
    };
  } finally {
    await host.stop();
  }
}
