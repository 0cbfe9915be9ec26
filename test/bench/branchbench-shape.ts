import type pg from 'pg';
import { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import { UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import { raiseCaps } from './extents.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, median, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 12 * 2 ** 30;
const MEGABYTES = 20;
const LENGTH = 16;
const CLIENTS = 64;
const MAINS = CLIENTS / LENGTH;
const ROUNDS = 5;
/** Rows that are updated in each database before the next one is made of it. */
const UPDATES = 100;

const METHOD = `The shape of the create sweep of BranchBench (arXiv 2604.17180), with our own client: a main of about ${MEGABYTES + 8} MB on \
XFS with reflink in a loopback file. *Chain*: ${LENGTH} databases, each made of the one before, in which ${UPDATES} rows were \
updated first. *Fan*: ${LENGTH} databases of main. *Clients*: ${CLIENTS} databases concurrently, ${LENGTH} of each of ${MAINS} mains; a \
project creates three at a time, and PostgreSQL clones one database once at a time. By \`POST …/branches\`, until the 201, and by \
\`CREATE DATABASE … STRATEGY FILE_COPY\` with \`file_copy_method = clone\` in one session for each client. Interleaved in ${ROUNDS} \
rounds after a first one that is discarded; the median creation of each round is taken. Everything runs on this machine. For \
comparison, the medians that BranchBench publishes for a chain of 16: Neon 160 ms, Xata 42,500 ms, Tiger 51,400 ms, Dolt 9.5 ms. \
They were measured elsewhere, over a network and on other hardware, so they only show orders of magnitude.`;

/** Measures branches of branches, and many concurrently. @param signal aborts it */
export const measureBranchbenchShape = (signal: AbortSignal): Promise<Report> =>
  // A main gets more logins in a minute than one client may make.
  onXfsStack(signal, DISK_BYTES, measure, { ...UNLIMITED, CONNECTION_ATTEMPTS_PER_MINUTE: '10000' });

type Shape = 'chain' | 'fan' | 'clients';
type Times = Record<'all' | 'firstAndLast', Series>;

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const mains: FilledMain[] = [];
  for (let n = 1; n <= MAINS; n++) {
    const filled = await filledMain(api, `Main ${n}`, MEGABYTES);
    await raiseCaps(stack, api, filled);
    mains.push(filled);
  }
  const sessions = await Promise.all(Array.from({ length: CLIENTS }, () => connectToClone(stack)));
  const series: Times = { all: {}, firstAndLast: {} };
  const [first] = mains as [FilledMain];
  const [session] = sessions as [pg.Client];
  try {
    const medians = await runInterleaved(
      ROUNDS,
      {
        'chain, bare clones': bareSweep(session, first, series, true),
        'chain, branches': branchSweep(api, first, series, true),
        'fan, bare clones': bareSweep(session, first, series, false),
        'fan, branches': branchSweep(api, first, series, false),
        'clients, bare clones': bareClients(sessions, mains, series),
        'clients, branches': branchClients(api, mains, series),
      },
      ...Object.values(series),
    );
    const ratio = (shape: Shape) => ({
      name: `a branch ÷ a bare clone, ${shape}`,
      measured: median(medians[`${shape}, branches`]) / median(medians[`${shape}, bare clones`]),
      limit: null,
      unit: '×' as const,
    });
    const ofChain = (which: 'first' | 'last') =>
      median(series.firstAndLast[`chain, branches, ${which}`] ?? []);
    return {
      title: 'Branches of branches, and many concurrently',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        ratio('chain'),
        ratio('fan'),
        ratio('clients'),
        {
          name: `branch ${LENGTH} of the chain ÷ the first`,
          measured: ofChain('last') / ofChain('first'),
          limit: null,
          unit: '×',
        },
      ],
      times: {
        'Median creation of a round': medians,
        'Every creation': series.all,
        'By depth': series.firstAndLast,
      },
    };
  } finally {
    await Promise.all(sessions.map((open) => open.end()));
  }
}

/** Makes `LENGTH` databases in sequence. @returns the median creation, in milliseconds */
async function sweep(
  { all, firstAndLast }: Times,
  name: string,
  prepare: () => Promise<unknown>,
  make: (n: number) => Promise<unknown>,
): Promise<number> {
  const times: number[] = [];
  for (let n = 1; n <= LENGTH; n++) {
    await prepare();
    times.push(await timed(() => make(n)));
  }
  for (const ms of times) addSample(all, name, ms);
  addSample(firstAndLast, `${name}, first`, times[0] ?? 0);
  addSample(firstAndLast, `${name}, last`, times.at(-1) ?? 0);
  return median(times);
}

const update = (url: string) =>
  query(url, 'update account set balance = balance + 1 where id <= $1', [UPDATES]);

const branchSweep =
  (api: Api, { project, main }: FilledMain, series: Times, isChain: boolean) =>
  async (name: string) => {
    const made: string[] = [];
    let source = project.main_branch.id;
    let url = main.direct_url;
    const ms = await sweep(
      series,
      name,
      () => update(url),
      async (n) => {
        const options = { source_branch_id: source, include: ['credentials'] };
        const branch = await api.branch(project.id, `round-${n}`, options);
        made.push(branch.id);
        if (!isChain) return;
        source = branch.id;
        url = (branch as unknown as { credentials: { direct_url: string } }).credentials.direct_url;
      },
    );
    for (const id of made.toReversed()) await purgeBranch(api, project.id, id);
    return ms;
  };

const bareSweep =
  (session: pg.Client, { main }: FilledMain, series: Times, isChain: boolean) =>
  async (name: string) => {
    let source = main.database;
    const ms = await sweep(
      series,
      name,
      async () => {
        if (source === main.database) await update(main.direct_url);
        await endSessions(session, source);
      },
      async (n) => {
        await makeBareClone(session, source, `bare_${n}`);
        if (isChain) source = `bare_${n}`;
      },
    );
    for (let n = 1; n <= LENGTH; n++) await session.query(`drop database bare_${n}`);
    return ms;
  };

/** Makes `CLIENTS` databases concurrently. @returns the median creation, in milliseconds */
async function atOnce({ all }: Times, name: string, make: (n: number) => Promise<unknown>) {
  const times = await Promise.all(Array.from({ length: CLIENTS }, (_, n) => timed(() => make(n))));
  for (const ms of times) addSample(all, name, ms);
  return median(times);
}

const branchClients = (api: Api, mains: readonly FilledMain[], series: Times) => async (name: string) => {
  const made: [project: string, branch: string][] = [];
  const ms = await atOnce(series, name, async (n) => {
    const project = mains[n % MAINS]?.project.id ?? '';
    made.push([project, (await api.branch(project, `client-${n}`)).id]);
  });
  for (const [project, id] of made) await purgeBranch(api, project, id);
  return ms;
};

const bareClients =
  (sessions: readonly pg.Client[], mains: readonly FilledMain[], series: Times) => async (name: string) => {
    const [session] = sessions as [pg.Client];
    for (const { main } of mains) await endSessions(session, main.database);
    const ms = await atOnce(series, name, async (n) =>
      makeBareClone(sessions[n] ?? session, mains[n % MAINS]?.main.database ?? '', `bare_${n}`),
    );
    for (let n = 0; n < CLIENTS; n++) await session.query(`drop database bare_${n}`);
    return ms;
  };
