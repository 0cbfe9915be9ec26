import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { Api, type BranchBody } from '../support/api.ts';
import { Load } from '../support/load.ts';
import { ended, purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { XfsMount } from '../support/stack/xfs.ts';
import { connectToClone, endSessions, makeBareClone, timeBareClone } from './bare-clone.ts';
import { addDurations, creationParts } from './creation-steps.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { median, medianDifference, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 12 * 2 ** 30;
const ROUNDS = 15;

/** Megabytes of rows to insert into a new database, which has 8 already. */
const LARGE = 1_000;
const SMALL = 2;

/** The load on a source in use just before it is cloned. */
const WRITERS = 8;
const WRITING_MS = 1_000;

/** Of a deletion, until its response. */
const DELETION_LIMIT = 1.3;

const METHOD = `PostgreSQL's data on XFS with reflink in a loopback file, everything else as \`npm start\` runs it. Measured are \
\`POST …/branches\` until its 201, and the \`CREATE DATABASE … STRATEGY FILE_COPY\` with \`file_copy_method = clone\` \
inside it: interleaved, after a first round that is discarded. Medians are compared. For differences, and for sources \
in use, whose clones take longer from round to round, it is the median of each round's value. Each case drops what it \
created before the next starts. *At rest*: a database without clients and with nothing to flush. *In use*: it has a \
branch that is kept, and ${WRITERS} clients wrote to it for a second just before; their writes unshare blocks from \
that branch, and the more fragments a file has, the longer the file system takes to clone it. *Deletions* of such branches at rest are measured until \
the 202, after which the host closes and keeps or drops the database, and compared with the \`DROP DATABASE\` of such a clone. Disk growth is the free \
space that the file system loses by one branch, including the write-ahead log. \`npm run bench\` repeats the \
measurement.`;

const FINDINGS = `The time a branch takes in addition to its clone does not grow with the database, so the ratio in use falls the longer \
the clone takes. At rest the bare clone is so short that the ratio describes this machine's disk more than the \
service: it is shown next to the additional milliseconds, without a limit. They are spent on the records before and \
after, the logins and rules created in parallel with the clone, and the proof that a client can log in. Attempts to \
shorten them are listed in [creation speed](../decisions/creation-speed.md).`;

/**
 * Measures what a branch costs in time, compared with a bare clone, and on disk.
 * @throws the first error after `signal` is aborted
 */
export const measureCopyOnWrite = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure);

async function measure(stack: Stack, disk: XfsMount): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const postgres = await connectToClone(stack);
  try {
    const large = await Source.make(api, postgres, LARGE);
    const small = await Source.make(api, postgres, SMALL);

    const steps: Record<'atRest' | 'inUse', Series> = { atRest: {}, inUse: {} };
    const casesAtRest = {
      'bare clone, 1 GB at rest': () => large.timeBareClone(),
      'branch, 1 GB at rest': () => large.timeBranch(steps.atRest),
      'bare clone, 10 MB at rest': () => small.timeBareClone(),
      'branch, 10 MB at rest': () => small.timeBranch(),
      'DROP DATABASE': () => small.timeBareDrop(),
      'deletion, kept for a day': () => small.timeDeletion(''),
      'deletion, dropped': () => small.timeDeletion('?purge=true'),
    };
    const atRest = await runInterleaved(ROUNDS, casesAtRest, steps.atRest);
    const used = disk.usedBytes();
    await large.branch('kept');
    const growth = disk.usedBytes() - used;
    const casesInUse = {
      'bare clone, 1 GB in use': () => large.use().then(() => large.timeBareClone()),
      'branch, 1 GB in use': () => large.use().then(() => large.timeBranch(steps.inUse)),
    };
    const inUse = await runInterleaved(ROUNDS, casesInUse, steps.inUse);
    await large.leave();
    const samples = { ...atRest, ...inUse };
    const ratio = (one: keyof typeof samples, other: keyof typeof samples) =>
      median(samples[one]) / median(samples[other]);
    return {
      title: 'Copy-on-write',
      method: METHOD,
      setting: {
        ...(await serverVersions(stack)),
        'source, large': `${large.bytes} bytes`,
        'source, small': `${small.bytes} bytes`,
      },
      goals: [
        {
          name: 'growth of the disk by a branch of 1 GB',
          measured: (100 * growth) / large.bytes,
          limit: 5,
          unit: '%',
        },
        {
          name: 'branch ÷ bare clone, 1 GB in use',
          measured: medianRatio(samples['branch, 1 GB in use'], samples['bare clone, 1 GB in use']),
          limit: 1.25,
          unit: '×',
        },
        {
          name: 'branch − bare clone, 1 GB in use',
          measured: medianDifference(samples['branch, 1 GB in use'], samples['bare clone, 1 GB in use']),
          limit: null,
          unit: 'ms',
        },
        {
          name: 'branch − bare clone, 1 GB at rest',
          measured: medianDifference(samples['branch, 1 GB at rest'], samples['bare clone, 1 GB at rest']),
          limit: null,
          unit: 'ms',
        },
        {
          name: 'branch ÷ bare clone, 1 GB at rest',
          measured: ratio('branch, 1 GB at rest', 'bare clone, 1 GB at rest'),
          limit: null,
          unit: '×',
        },
        {
          name: 'branch of 1 GB ÷ branch of 10 MB, at rest',
          measured: ratio('branch, 1 GB at rest', 'branch, 10 MB at rest'),
          limit: 1.3,
          unit: '×',
        },
        ...(['deletion, kept for a day', 'deletion, dropped'] as const).map((deletion) => ({
          name: `${deletion}, until the response ÷ DROP DATABASE`,
          measured: medianRatio(samples[deletion], samples['DROP DATABASE']),
          limit: DELETION_LIMIT,
          unit: '×' as const,
        })),
      ],
      findings: FINDINGS,
      times: {
        'Whole calls': samples,
        'Parts of a branch of 1 GB at rest': steps.atRest,
        'Parts of a branch of 1 GB in use': steps.inUse,
      },
    };
  } finally {
    await postgres.end();
  }
}

/** A project's main database that is cloned repeatedly. */
class Source {
  readonly #api: Api;
  readonly #postgres: pg.Client;
  readonly #source: FilledMain;
  readonly bytes: number;
  #load: Load | undefined;

  private constructor(api: Api, postgres: pg.Client, source: FilledMain, bytes: number) {
    this.#api = api;
    this.#postgres = postgres;
    this.#source = source;
    this.bytes = bytes;
  }

  static async make(api: Api, postgres: pg.Client, megabytes: number): Promise<Source> {
    const source = await filledMain(api, `Source of ${megabytes} MB`, megabytes);
    const { rows } = await postgres.query<{ bytes: string }>('select pg_database_size($1) as bytes', [
      source.main.database,
    ]);
    return new Source(api, postgres, source, Number(rows[0]?.bytes));
  }

  /** Writes for a while. The clients stay connected, because a branch admits few attempts a minute. */
  async use(): Promise<void> {
    if (this.#load) this.#load.resume();
    else this.#load = await Load.start(this.#source.main.database_url, WRITERS);
    await sleep(WRITING_MS);
    await this.#load.pause();
  }

  async leave(): Promise<void> {
    await this.#load?.stop();
  }

  branch(name: string): Promise<BranchBody> {
    return this.#api.branch(this.#source.project.id, name);
  }

  timeBareClone(): Promise<number> {
    return timeBareClone(this.#postgres, this.#source.main.database);
  }

  /** @param series receives the duration of each step and of the work before and after them */
  async timeBranch(series: Series = {}): Promise<number> {
    const { id } = this.#source.project;
    const from = Date.now();
    const branch = await this.branch('round');
    const to = Date.now();
    addDurations(series, await creationParts(this.#api, id, [{ from, to }]));
    await purgeBranch(this.#api, id, branch.id);
    return to - from;
  }

  /** Drops a bare clone. */
  async timeBareDrop(): Promise<number> {
    const { database } = this.#source.main;
    await endSessions(this.#postgres, database);
    await makeBareClone(this.#postgres, database, 'bare');
    return timed(() => this.#postgres.query('drop database bare'));
  }

  /** Deletes a branch, and waits afterwards until its host has done what follows. @param query of the request */
  async timeDeletion(query: string): Promise<number> {
    const path = `/api/v1/projects/${this.#source.project.id}/branches`;
    const { id } = await this.branch('round');
    let job = '';
    const ms = await timed(async () => {
      job = (await this.#api.delete<{ job_id: string }>(`${path}/${id}${query}`)).body.job_id;
    });
    await ended(this.#api, job);
    if (query === '') await purgeBranch(this.#api, this.#source.project.id, id);
    return ms;
  }
}
