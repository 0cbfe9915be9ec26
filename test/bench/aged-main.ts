import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { Api } from '../support/api.ts';
import { eventually } from '../support/eventually.ts';
import { Load } from '../support/load.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone } from './bare-clone.ts';
import { countExtents, folderOf, raiseCaps } from './extents.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, median, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 16 * 2 ** 30;
const MEGABYTES = 500;
const WRITERS = 8;
/**
 * Of a writer between two transactions, on average: the machine's processors are shared with everything else.
 */
const PAUSE_MS = 20;
const EXTENTS = 30_000;
const KEPT_MAX = 18;
const AGING_MS = 3_000;
const SNAPSHOTS = 3;
const ROUNDS = 9;
const SETTLE_MS = 300;
const INDEPENDENT_WITHIN_S = 120;
/** Blocks that a transaction writes: three rows, and the end of the ledger. */
const BLOCKS_A_TRANSACTION = 4;

const METHOD = `Two main databases of about ${MEGABYTES} MB on XFS with reflink. One is left unchanged (*fresh*). The other is aged: \
${WRITERS} clients write to it through the pooler while branches are created of it and kept, until it lies in ${EXTENTS} \
extents or more, and the branches are dropped. Then, while ${WRITERS} clients go on writing to it with ${PAUSE_MS} ms between two \
transactions, ${SNAPSHOTS} snapshots are taken, each until the agent has made it independent, and main's extents are counted. At \
last, interleaved in ${ROUNDS} rounds under the same load: a branch of the aged main's latest snapshot, and a branch of the \
fresh main. The writers' worst transaction during the former is compared with that of two windows of the same length just after \
it: one in which another process computes on one processor and touches no database, and one without. The limits apply to medians, \
and for the worst transaction to the median of the ratios in each round.`;

const FINDINGS = `A branch computes for as long as it takes, on one processor of the host or more. So the writers wait for a processor \
as they do beside any other work: with two processors, a process that only computes makes their worst transaction as bad, and a \
bare clone of the snapshot's database doubles it. The limit is therefore against that process \
([creation speed](../decisions/creation-speed.md)).`;

/** Keeps one processor busy. */
async function compute(ms: number): Promise<void> {
  const child = spawn(process.execPath, ['-e', 'for (;;);'], { stdio: 'ignore' });
  const ended = once(child, 'exit');
  await sleep(ms);
  child.kill('SIGKILL');
  await ended;
}

/** Measures branches of an independent snapshot of a fragmented main. @param signal aborts it */
export const measureAgedMain = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, UNLIMITED);

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const postgres = await connectToClone(stack);
  const fresh = await filledMain(api, 'Fresh', MEGABYTES);
  const aged = await filledMain(api, 'Aged', MEGABYTES);
  await raiseCaps(stack, api, aged);
  const folder = await folderOf(postgres, stack, aged.main.database);
  const extents = async () => {
    await postgres.query('checkpoint');
    return countExtents(folder);
  };
  await age(api, aged, extents);
  const agedExtents = await extents();
  const load = await Load.start(aged.main.database_url, WRITERS, PAUSE_MS);
  try {
    await load.connected;
    const growth: Series = {};
    let before = await extents();
    for (let n = 1; n <= SNAPSHOTS; n++) {
      const start = performance.now();
      await snapshotUntilIndependent(api, postgres, aged);
      const { transactions } = load.since(start);
      const now = await extents();
      addSample(growth, 'extents that a snapshot added', now - before);
      addSample(growth, 'blocks written while it was linked, at most', transactions * BLOCKS_A_TRANSACTION);
      addSample(growth, 'extents of main', now);
      before = now;
    }

    const worst: Series = {};
    const branch = async ({ project }: FilledMain, more: Record<string, unknown> = {}) => {
      let branchId = '';
      const start = performance.now();
      const ms = await timed(async () => {
        branchId = (await api.branch(project.id, 'round', more)).id;
      });
      const { worstMs } = load.since(start, start + ms);
      await purgeBranch(api, project.id, branchId);
      await sleep(SETTLE_MS);
      return { ms, worstMs };
    };
    const worstDuring = async (action: () => Promise<unknown>) => {
      const start = performance.now();
      await action();
      const { worstMs } = load.since(start);
      await sleep(SETTLE_MS);
      return worstMs;
    };
    const times = await runInterleaved(
      ROUNDS,
      {
        'of the latest snapshot of the aged main': async () => {
          const { ms, worstMs } = await branch(aged, { from: 'latest_snapshot' });
          addSample(worst, 'during a branch of the snapshot', worstMs);
          addSample(worst, 'while another process computes', await worstDuring(() => compute(ms)));
          addSample(worst, 'without', await worstDuring(() => sleep(ms)));
          return ms;
        },
        'of the fresh main': async () => (await branch(fresh)).ms,
      },
      worst,
    );
    const { failures } = load.since(0);
    const ratio = medianRatio(
      growth['extents that a snapshot added'] ?? [],
      growth['blocks written while it was linked, at most'] ?? [],
    );
    return {
      title: 'Branches of an aged main by its snapshots',
      method: METHOD,
      setting: { ...(await serverVersions(stack)), 'extents of the aged main': String(agedExtents) },
      goals: [
        {
          name: 'a branch of the latest snapshot of the aged main ÷ a branch of the fresh main',
          measured:
            median(times['of the latest snapshot of the aged main']) / median(times['of the fresh main']),
          limit: 1.3,
          unit: '×',
        },
        {
          name: "writers' worst transaction during a branch ÷ while another process computes",
          measured: medianRatio(
            worst['during a branch of the snapshot'] ?? [],
            worst['while another process computes'] ?? [],
          ),
          limit: 1.5,
          unit: '×',
        },
        { name: 'failed transactions', measured: failures.length, limit: 0, unit: 'transactions' },
        {
          name: 'extents of the aged main',
          measured: agedExtents,
          limit: EXTENTS,
          atLeast: true,
          unit: 'items',
        },
        {
          name: 'extents that a snapshot adds ÷ blocks written while it is linked',
          measured: ratio,
          limit: 2,
          unit: '×',
        },
      ],
      findings: FINDINGS,
      times: { 'A branch': times, "Writers' worst transaction": worst },
      counts: { 'Extents of the aged main': growth },
    };
  } finally {
    await load.stop();
    await postgres.end();
  }
}

/** Fragments main by branches that are kept while it is written to. */
async function age(api: Api, { project, main }: FilledMain, extents: () => Promise<number>): Promise<void> {
  const load = await Load.start(main.database_url, WRITERS);
  const kept: string[] = [];
  while (kept.length < KEPT_MAX && (await extents()) < EXTENTS) {
    kept.push((await api.branch(project.id, `kept-${kept.length}`)).id);
    await sleep(AGING_MS);
  }
  await load.stop();
  for (const id of kept) await purgeBranch(api, project.id, id);
}

/** By the agent's table: the gateway learns it at its next reconciliation only. */
async function snapshotUntilIndependent(
  api: Api,
  postgres: pg.Client,
  { project }: FilledMain,
): Promise<void> {
  const path = `/api/v1/projects/${project.id}/branches/main/snapshots`;
  const { body } = await api.post<{ id: string }>(path, {});
  await eventually(async () => {
    const { rows } = await postgres.query<{ independent: boolean }>(
      'select independent from snapshot where snapshot_id = $1',
      [body.id],
    );
    if (!rows[0]?.independent) throw new Error('the snapshot is not independent');
  }, INDEPENDENT_WITHIN_S);
}
