import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { Api } from '../support/api.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { Load } from '../support/load.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { XfsMount } from '../support/stack/xfs.ts';
import { connectToClone, endSessions, makeBareClone, timeBareClone } from './bare-clone.ts';
import { countExtents, folderOf, largeFiles, raiseCaps } from './extents.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { median, runInterleaved, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 16 * 2 ** 30;
const ROUNDS = 9;
const MEGABYTES = 500;
const BRANCHES = 10;
const WRITERS = 8;
const WRITING_MS = 20_000;

const METHOD = `Two main databases of about ${MEGABYTES} MB on XFS with reflink. One is left unchanged (*fresh*). To the other, \
${WRITERS} clients write through the pooler for ${WRITING_MS / 1000} s at random positions, and ${BRANCHES} branches are \
created of it meanwhile and kept (*aged*). Two copies of the aged one, with identical extents, are then treated: one \
by \`xfs_fsr\` (*defragmented*), the other by \`VACUUM FULL\` (*rewritten*). Measured at rest, interleaved in \
${ROUNDS} rounds: the \`CREATE DATABASE … STRATEGY FILE_COPY\` of each with \`file_copy_method = clone\`, and \`POST \
…/branches\` of the two that are a project's main. Medians are compared. Each case drops what it created before the \
next starts. How far a source ages in ${WRITING_MS / 1000} s depends on how much the machine writes in that time, so \
the extents are shown.`;

const FINDINGS = `The cost depends on the extents, not on the age: a block that is written while a branch holds the old version gets a \
new location, and the file system records every extent of a file again in each clone. There are two remedies. \
\`xfs_fsr <data folder>/base/<oid of main>/*\`, as root, defragments each file while PostgreSQL runs, and leaves the \
branches unchanged. It copies a file and uses the copy only if the file was not written to meanwhile; otherwise the \
file silently stays as it was (with a write every millisecond: no file replaced, no write lost). It is therefore \
suited to an hour when main is not written to, and works file by file, 1 GB at a time. \`VACUUM FULL\` by the owner \
needs no privileges on the host, but locks each table while it rewrites it and takes longer. Either needs as much \
space as main shares with its branches. Alternatives that did not reduce the extents per transaction: the \
copy-on-write extent size hint (\`xfs_io -c "cowextsize 1m"\` or 8m on \`base\`), because only written blocks move; \
\`funshare\`, which skips blocks that have moved before; a log of 512 MB. Blocks of 16 or 64 KB are experimental in \
the kernel, and were no better either.`;

/** Measures how kept branches and writes slow down a clone, and how to undo it. @param signal aborts it */
export const measureAgedSource = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure);

async function measure(stack: Stack, disk: XfsMount): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const postgres = await connectToClone(stack);
  try {
    const fresh = await filledMain(api, 'Fresh', MEGABYTES);
    const aged = await filledMain(api, 'Aged', MEGABYTES);
    await raiseCaps(stack, api, aged);
    const transactions = await age(api, aged);

    const branch = async ({ project }: FilledMain) => {
      let branchId = '';
      const ms = await timed(async () => {
        branchId = (await api.branch(project.id, 'round')).id;
      });
      await purgeBranch(api, project.id, branchId);
      return ms;
    };
    const treat = async (database: string, action: (folder: string) => Promise<unknown>) => {
      await endSessions(postgres, aged.main.database);
      await makeBareClone(postgres, aged.main.database, database);
      const folder = await folderOf(postgres, stack, database);
      const used = disk.usedBytes();
      const ms = await timed(() => action(folder));
      await postgres.query('checkpoint');
      return { ms, growth: (disk.usedBytes() - used) / 2 ** 20 };
    };
    const defragmented = await treat('defragmented', async (folder) => {
      execFileSync('xfs_fsr', largeFiles(folder), { stdio: 'pipe' });
    });
    const rewritten = await treat('rewritten', async () => {
      const session = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', 'rewritten');
      await session.query('vacuum full').finally(() => session.end());
    });

    const sources = {
      fresh: fresh.main.database,
      aged: aged.main.database,
      defragmented: 'defragmented',
      rewritten: 'rewritten',
    };
    const clones = await runInterleaved(ROUNDS, {
      fresh: () => timeBareClone(postgres, sources.fresh),
      aged: () => timeBareClone(postgres, sources.aged),
      defragmented: () => timeBareClone(postgres, sources.defragmented),
      rewritten: () => timeBareClone(postgres, sources.rewritten),
      'fresh, branch': () => branch(fresh),
      'aged, branch': () => branch(aged),
    });
    const extents: Record<string, number[]> = {};
    for (const [name, database] of Object.entries(sources)) {
      extents[name] = [countExtents(await folderOf(postgres, stack, database))];
    }
    const ratio = (one: keyof typeof clones, other: keyof typeof clones) => ({
      name: `clone: ${one} ÷ ${other}`,
      measured: median(clones[one]) / median(clones[other]),
      limit: null,
      unit: '×' as const,
    });
    return {
      title: 'Cloning an aged source',
      method: METHOD,
      setting: {
        ...(await serverVersions(stack)),
        'transactions while it aged': String(transactions),
        xfs_fsr: `${defragmented.ms.toFixed(0)} ms, ${defragmented.growth.toFixed(0)} MB more on the disk`,
        'VACUUM FULL': `${rewritten.ms.toFixed(0)} ms, ${rewritten.growth.toFixed(0)} MB more on the disk`,
      },
      goals: [
        ratio('aged', 'fresh'),
        ratio('defragmented', 'fresh'),
        ratio('rewritten', 'fresh'),
        ratio('aged, branch', 'fresh, branch'),
      ],
      findings: FINDINGS,
      times: { 'A clone': clones },
      counts: { 'Extents of the source': extents },
    };
  } finally {
    await postgres.end();
  }
}

/** @returns the number of transactions */
async function age(api: Api, { project, main }: FilledMain): Promise<number> {
  const load = await Load.start(main.database_url, WRITERS);
  const start = performance.now();
  for (let n = 1; n <= BRANCHES; n++) {
    await api.branch(project.id, `kept-${n}`);
    await sleep(Math.max(start + (n * WRITING_MS) / BRANCHES - performance.now(), 0));
  }
  await load.stop();
  return load.since(start).transactions;
}
