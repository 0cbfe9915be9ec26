import { setTimeout as sleep } from 'node:timers/promises';
import { connect } from '../support/database.ts';
import { Follower, STATE, TRANSFER } from '../support/host/follower.ts';
import { asClient } from '../support/host/host-project.ts';
import type { Report } from './report.ts';

const PER_SECOND = 500;
const CLIENTS = 4;
const BEAT_EVERY_MS = 100;
const BRANCH_EVERY_MS = 3_000;
const VERSIONS = { 'version 18': undefined, 'version 15': '/usr/lib/postgresql/15/bin' };

const BEAT = `set role app; create table beat (id int primary key, at timestamptz not null); insert into beat values (1, clock_timestamp())`;
const AGE = 'select extract(epoch from clock_timestamp() - at)::float8 * 1000 as ms from beat';

const method = (
  minutes: number,
) => `A host without its gateway follows a source on this machine, in memory, for ${minutes} minutes: first one of version 18, then one of \
version 15. ${CLIENTS} clients make ${PER_SECOND} transfers a second there, of four statements each. **Lag:** the age of the newest of ten heartbeats a second that is \
applied, read five times a second. **Reported:** how much \`follow.status\` differs from that, every second. A branch is made each ${BRANCH_EVERY_MS / 1000} s, and has to be \
the source at one commit: the sum of all accounts stays, and two counts of the transfers are equal. At the end both sides have the same rows.`;

/** Calls `work` at a steady rate until `signal` aborts; what was late is made up for. */
async function pacedLoop(everyMs: number, signal: AbortSignal, work: () => Promise<unknown>): Promise<void> {
  for (let next = performance.now(); !signal.aborted; next += everyMs) {
    const wait = next - performance.now();
    if (wait > 1) await sleep(wait, undefined, { signal }).catch(() => {});
    if (!signal.aborted) await work();
  }
}

const FINDINGS = `Following rests while a branch is made, so the lag grows by the time of a clone every ${BRANCH_EVERY_MS / 1000} s. \
While the run with version 15 lasted, tests and an installation ran on the same two cores for half of the time; \
little ran beside version 18. At another time, beside 8 to 14 processes that could run, the clients reached 277 and 365 transfers a second, the lag at p99 was 6.6 and 5.6 s, and each branch was one commit all the same.`;

interface Run {
  lags: number[];
  errors: number[];
  branches: number;
  torn: number;
  perSecond: number;
  isEqual: boolean;
}

async function follow(programs: string | undefined, minutes: number): Promise<Run> {
  const follower = await Follower.start(programs);
  const over = new AbortController();
  const run: Run = { lags: [], errors: [], branches: 0, torn: 0, perSecond: 0, isEqual: false };
  try {
    await follower.renew();
    await follower.source.run(BEAT);
    await follower.begin();
    const clients = await Promise.all(
      Array.from({ length: CLIENTS + 1 }, () => connect(follower.source.url())),
    );
    const [beating, ...writing] = clients;
    const age = async () => Number((await follower.here(AGE))[0]?.ms);
    const loops = [
      pacedLoop(BEAT_EVERY_MS, over.signal, async () =>
        beating?.query('update beat set at = clock_timestamp()'),
      ),
      ...writing.map((client) =>
        pacedLoop((1000 * CLIENTS) / PER_SECOND, over.signal, () => client.query(TRANSFER)),
      ),
      pacedLoop(200, over.signal, async () => run.lags.push(await age())),
      pacedLoop(1_000, over.signal, async () => {
        const { lag_seconds } = await follower.status();
        // It is unknown while the slot cannot be read.
        if (lag_seconds !== null) run.errors.push(Math.abs((await age()) - lag_seconds * 1000));
      }),
      pacedLoop(BRANCH_EVERY_MS, over.signal, async () => {
        const branch = await follower.branch(String(run.branches));
        const [state] = await asClient(follower.servers.host, 'direct', branch, 'owner', STATE);
        run.branches += 1;
        if (state?.sum !== 50_000 || state.transfers !== state.counted) run.torn += 1;
        await follower.project.drop(branch);
      }),
    ];
    const began = performance.now();
    const ended = Promise.race([Promise.all(loops), sleep(minutes * 60_000)]);
    await ended;
    over.abort();
    await Promise.all(loops);
    const [state] = await follower.source.run<{ counted: number }>(STATE);
    run.perSecond = Number(state?.counted) / ((performance.now() - began) / 1000);
    await Promise.all(clients.map((client) => client.end()));
    await follower.untilLevel();
    const all = `select md5(string_agg(t::text, ',' order by t.id)) as digest from transfer t`;
    run.isEqual = JSON.stringify(await follower.here(all)) === JSON.stringify(await follower.source.run(all));
    await follower.end();
    return run;
  } finally {
    over.abort();
    await follower.stop();
  }
}

const percentile = (values: readonly number[], share: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(values.length * share) - 1] ?? Number.NaN;

const SHOWN = 100;
/** The largest value of each hundredth of the run. */
const largest = (values: readonly number[]): number[] =>
  Array.from({ length: SHOWN }, (_, n) =>
    values.slice(Math.floor((n * values.length) / SHOWN), Math.floor(((n + 1) * values.length) / SHOWN)),
  ).flatMap((part) => (part.length > 0 ? [Math.max(...part)] : []));

/** Measures following under a steady load. @param minutes for each version of the source */
export async function measureFollowingLoad(minutes: number): Promise<Report> {
  const runs: [string, Run][] = [];
  for (const [version, programs] of Object.entries(VERSIONS))
    runs.push([version, await follow(programs, minutes)]);
  const row = (of: (run: Run) => number[]) => Object.fromEntries(runs.map(([name, run]) => [name, of(run)]));
  return {
    title: 'Following under load',
    method: method(minutes),
    findings: FINDINGS,
    goals: runs.flatMap(([version, run]) => [
      {
        name: `${version}: lag at p99`,
        measured: percentile(run.lags, 0.99),
        limit: 1_000,
        unit: 'ms' as const,
      },
      {
        name: `${version}: difference of the reported lag, at p99`,
        measured: percentile(run.errors, 0.99),
        limit: 1_000,
        unit: 'ms' as const,
      },
      { name: `${version}: branches that are not one commit`, measured: run.torn, limit: 0, unit: 'items' },
      {
        name: `${version}: rows are lost or there twice at the end`,
        measured: run.isEqual ? 0 : 1,
        limit: 0,
        unit: 'items',
      },
    ]),
    times: {
      'Lag, the largest of each hundredth of the time': row(({ lags }) => largest(lags)),
      'Difference of the reported lag, the largest likewise': row(({ errors }) => largest(errors)),
    },
    counts: {
      'Transfers a second': row(({ perSecond }) => [perSecond]),
      Branches: row(({ branches }) => [branches]),
    },
  };
}
