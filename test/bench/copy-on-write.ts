import { join } from 'node:path';
import type pg from 'pg';
import { Api, type BranchBody, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost } from '../support/host-session.ts';
import { fillLedger } from '../support/load.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { mountXfs } from '../support/xfs.ts';
import { describeMachine } from './machine.ts';
import type { Report } from './report.ts';
import { byTurns, median, timed } from './rounds.ts';

const DISK_BYTES = 12 * 2 ** 30;
const ROUNDS = 15;

/** Megabytes of rows; an empty database has 8 more. */
const SOURCES = { 'ten megabytes': 2, 'one gigabyte': 1_000 };

const METHOD = `Branches of a database without clients, on XFS with reflink in a file, everything else as \`npm start\` runs
it: \`POST …/branches\` until its 201, beside the \`CREATE DATABASE … STRATEGY FILE_COPY\` with \`file_copy_method = clone\`
that is at the heart of it. Both by turns, after a round that does not count; medians are compared. What a round has
made is dropped before the next case. Disk growth is what the file system has less after one branch, write-ahead log and
all. \`npm run bench\` measures it again.`;

interface Job {
  status: string;
  steps: { name: string; started_at: string; finished_at: string }[];
}

/** Copy-on-write, measured: what a branch costs in time and on the disk, compared with a bare clone. */
export async function measureCopyOnWrite(): Promise<Report> {
  const disk = mountXfs(DISK_BYTES);
  try {
    const stack = await startStack({ env: { PGDATA_DIR: join(disk.folder, 'data') } });
    try {
      return await measure(stack, disk.usedBytes);
    } finally {
      await stack.stop();
    }
  } finally {
    disk.remove();
  }
}

async function measure(stack: Stack, usedBytes: () => number): Promise<Report> {
  const api = new Api(stack.baseUrl, await stack.token({ tenant: 'bench' }));
  const postgres = await connectOnHost(stack.postgres, 'branchgate');
  try {
    const large = await Source.make(api, postgres, 'one gigabyte');
    const small = await Source.make(api, postgres, 'ten megabytes');

    const usedBefore = usedBytes();
    const first = await api.branch(large.project.id, 'first');
    const growth = usedBytes() - usedBefore;
    await large.drop(first);

    const times = await byTurns(ROUNDS, {
      'bare clone, 1 GB': () => large.cloneBare(),
      'branch, 1 GB': () => large.branch(),
      'bare clone, 10 MB': () => small.cloneBare(),
      'branch, 10 MB': () => small.branch(),
    });
    const ratio = (one: keyof typeof times, other: keyof typeof times) =>
      median(times[one]) / median(times[other]);
    return {
      title: 'Copy-on-write',
      method: METHOD,
      setting: { ...describeMachine(), ...(await versions(postgres, stack)), 'source': megabytes(large.bytes) },
      goals: [
        { name: 'disk growth by a branch of 1 GB', measured: (100 * growth) / large.bytes, limit: 5, unit: '%' },
        { name: 'branch ÷ bare clone, 1 GB', measured: ratio('branch, 1 GB', 'bare clone, 1 GB'), limit: 1.5, unit: '×' },
        { name: 'branch of 1 GB ÷ branch of 10 MB', measured: ratio('branch, 1 GB', 'branch, 10 MB'), limit: 2, unit: '×' },
      ],
      times: { 'Whole calls': times, 'Steps of a branch of 1 GB': large.steps },
    };
  } finally {
    await postgres.end();
  }
}
