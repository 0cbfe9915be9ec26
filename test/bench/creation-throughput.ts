import { join } from 'node:path';
import type pg from 'pg';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { hasRelease, type ReleasedStack, startReleasedStack } from '../support/released.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { XfsMount } from '../support/stack/xfs.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import { addDurations, creationParts } from './creation-steps.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { median, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 12 * 2 ** 30;
const PROJECTS = 16;
/** Of each project per round, in sequence. */
const BRANCHES = 2;
const MEGABYTES = 20;
/** One row in this many is updated: about one row in every sixteenth block. */
const UPDATE_EVERY = 1_000;
const ROUNDS = 7;
const LIMIT = 0.4;
/** Of the time of a single branch, against a single bare clone. */
const SINGLE_LIMIT = 1.6;
/** Of the time of a branch, against the last release. */
const RELEASE_LIMIT = 0.75;

const METHOD = `PostgreSQL's data on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all on this \
machine. ${PROJECTS} projects with a main of about ${MEGABYTES + 8} MB. In each, concurrently, ${BRANCHES} branches \
are created in sequence: by \`POST …/branches\`, until the 201; and by \`CREATE DATABASE … STRATEGY FILE_COPY\` with \
\`file_copy_method = clone\` in one open session each. Interleaved, ${ROUNDS} rounds after a first one that is \
discarded; medians are compared. Of the first project, one branch and one bare clone are also made alone. The *parts* of a branch are the steps of its job, and what the gateway does before and after them. Each case drops what it created before the next starts. *At rest*: mains without \
clients and with nothing to flush. *In use*: each has a branch that is kept, and just before, one row in ${UPDATE_EVERY} was \
updated, which dirties a block in sixteen and unshares it from that branch. The bare side creates a database that \
nobody can log in to; a branch also has three logins, rules on both ports and a pooler entry, is recorded and audited, \
and was logged in to as its client will. *By the last release*: the gateway, the agent and the servers' configuration of the \
commit in \`test/support/released.ts\`, as a second stack on the same file system with the same projects; its branches had the \
same logins, rules and proof.`;

const FINDINGS = `The processors are the limit. Processor time of a branch on 2026-11-23, counted by control groups while 32 branches were created in 16 \
projects concurrently on a machine that did nothing else, with a rest of 1.5 s before (medians of six rounds): 149 ms. PostgreSQL 72, of which \
a bare clone takes 28; workerd 51; the agent 24; PgBouncer 3. By the last release: 134 ms, of which PostgreSQL 76 and workerd 34. So the \
gateway, which runs elsewhere in production, is what costs more than before: a call of D1 takes about 3 ms of workerd on this machine, \
and a creation makes seven instead of five. With that rest, 9.8 branches a second were created, and 10.4 by the last release; a single \
one took 207 ms, and 225 by the last release ([creation speed](../decisions/creation-speed.md)).`;

/**
 * Measures branches per second, created in many projects in parallel, compared with bare clones.
 * @throws the first error after `signal` is aborted
 */
export const measureCreationThroughput = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, (stack, disk) => measureWithRelease(signal, stack, disk));

async function measureWithRelease(signal: AbortSignal, stack: Stack, disk: XfsMount): Promise<Report> {
  if (!hasRelease()) throw new Error('this copy of the repository lacks the last release: fetch its history');
  const released = await startReleasedStack({ PGDATA_DIR: join(disk.folder, 'released') });
  try {
    signal.throwIfAborted();
    return await measure(stack, released);
  } finally {
    await released.stack.stop();
  }
}

async function openSources({ stack, api, purgeBranch: purge }: ReleasedStack): Promise<Source[]> {
  const sources: Source[] = [];
  for (let n = 1; n <= PROJECTS; n++) {
    const session = await connectToClone(stack);
    sources.push(new Source(api, session, await filledMain(api, `Source ${n}`, MEGABYTES), purge));
  }
  return sources;
}

async function measure(stack: Stack, released: ReleasedStack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const sources = await openSources({ stack, api, purgeBranch });
  const before = await openSources(released);
  const parts: Record<'alone' | 'parallel', Series> = { alone: {}, parallel: {} };
  const [first] = sources as [Source];
  try {
    const single = await runInterleaved(
      ROUNDS,
      {
        'one bare clone': () => first.timeOne(() => first.makeBareClones(1)),
        'one branch': async () => {
          const ms = await first.timeOne(() => first.makeBranches(1));
          await first.recordParts(parts.alone);
          return ms;
        },
      },
      parts.alone,
    );
    const casesAtRest = {
      'bare clones, at rest': () => rate(sources, (source) => source.makeBareClones()),
      'branches, at rest': async () => {
        const made = await rate(sources, (source) => source.makeBranches());
        for (const source of sources) await source.recordParts(parts.parallel);
        return made;
      },
      'branches by the last release, at rest': () => rate(before, (source) => source.makeBranches()),
    };
    const atRest = await runInterleaved(ROUNDS, casesAtRest, parts.parallel);
    for (const source of sources) await source.keepBranch();
    const use = () => Promise.all(sources.map((source) => source.use()));
    const inUse = await runInterleaved(ROUNDS, {
      'bare clones, in use': () => use().then(() => rate(sources, (source) => source.makeBareClones())),
      'branches, in use': () => use().then(() => rate(sources, (source) => source.makeBranches())),
    });
    const rates = { ...atRest, ...inUse };
    const goal = (state: 'at rest' | 'in use') => ({
      name: `branches ÷ bare clones, ${state}`,
      measured: median(rates[`branches, ${state}`]) / median(rates[`bare clones, ${state}`]),
      limit: LIMIT,
      atLeast: true as const,
      unit: '×' as const,
    });
    return {
      title: 'Creation throughput',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        goal('at rest'),
        goal('in use'),
        {
          name: 'time of one branch ÷ of one bare clone, at rest',
          measured: medianRatio(single['one branch'], single['one bare clone']),
          limit: SINGLE_LIMIT,
          unit: '×',
        },
        {
          name: 'time of a branch ÷ by the last release, at rest',
          measured:
            median(rates['branches by the last release, at rest']) / median(rates['branches, at rest']),
          limit: RELEASE_LIMIT,
          unit: '×',
        },
      ],
      findings: FINDINGS,
      counts: { 'Created per second': rates },
      times: {
        'One at a time, at rest': single,
        'Parts of a branch, one at a time': parts.alone,
        [`Parts of a branch, ${PROJECTS} projects at rest`]: parts.parallel,
      },
    };
  } finally {
    for (const source of [...sources, ...before]) await source.close();
  }
}

/** @returns the number created per second, in all projects together */
async function rate(sources: readonly Source[], make: (source: Source) => Promise<unknown>): Promise<number> {
  for (const source of sources) await source.empty();
  const ms = await timed(() => Promise.all(sources.map(make)));
  for (const source of sources) await source.dropMade();
  return (sources.length * BRANCHES * 1_000) / ms;
}

/** One project's main, and the clones made of it in this round. */
class Source {
  readonly #api: Api;
  readonly #session: pg.Client;
  readonly #source: FilledMain;
  readonly #purge: typeof purgeBranch;
  #bareClones: string[] = [];
  #branchIds: string[] = [];
  /** The requests of these branches. */
  #calls: { from: number; to: number }[] = [];
  #uses = 0;

  constructor(api: Api, session: pg.Client, source: FilledMain, purge: typeof purgeBranch) {
    this.#api = api;
    this.#session = session;
    this.#source = source;
    this.#purge = purge;
  }

  empty() {
    return endSessions(this.#session, this.#source.main.database);
  }

  async use(): Promise<void> {
    this.#uses += 1;
    await query(this.#source.main.direct_url, 'update account set balance = balance + 1 where id % $1 = $2', [
      UPDATE_EVERY,
      this.#uses,
    ]);
  }

  keepBranch() {
    return this.#api.branch(this.#source.project.id, 'kept');
  }

  /** @returns milliseconds */
  async timeOne(make: () => Promise<void>): Promise<number> {
    await this.empty();
    const ms = await timed(make);
    await this.dropMade();
    return ms;
  }

  async makeBareClones(count = BRANCHES): Promise<void> {
    const { database } = this.#source.main;
    for (let n = 1; n <= count; n++) {
      const name = `bare_${database}_${n}`.slice(0, 63);
      await makeBareClone(this.#session, database, name);
      this.#bareClones.push(name);
    }
  }

  async makeBranches(count = BRANCHES): Promise<void> {
    this.#calls = [];
    for (let n = 1; n <= count; n++) {
      const from = Date.now();
      this.#branchIds.push((await this.#api.branch(this.#source.project.id, `round-${n}`)).id);
      this.#calls.push({ from, to: Date.now() });
    }
  }

  /** @param parts receives the duration of each part of the round's creations, whose branches are dropped by now */
  async recordParts(parts: Series): Promise<void> {
    addDurations(parts, await creationParts(this.#api, this.#source.project.id, this.#calls));
  }

  async dropMade(): Promise<void> {
    for (const name of this.#bareClones) await this.#session.query(`drop database "${name}"`);
    const { id } = this.#source.project;
    await Promise.all(this.#branchIds.map((branchId) => this.#purge(this.#api, id, branchId)));
    this.#bareClones = [];
    this.#branchIds = [];
  }

  close() {
    return this.#session.end();
  }
}
