import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { Api } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import { raiseCaps } from './extents.ts';
import { type FilledMain, filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, median, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 12 * 2 ** 30;
const MEGABYTES = 20;
const LENGTH = 16;
const CLIENTS = 64;
const MAINS = CLIENTS / LENGTH;
const ROUNDS = 5;
/** Rows that are updated in each database before the next one is made of it. */
const UPDATES = 100;

/** Direct sessions in main, each of which works for a moment and then rests. */
const CROWD = 60;
const REST_MS = 20;
const WORKERS = 20;
const TURNS = 3;
const CROWD_LIMIT = 1.2;
/** A clone that is refused because main is busy is requested again. */
const AGAIN_AFTER_MS = 50;

const METHOD = `The shape of the create sweep of BranchBench (arXiv 2604.17180), with our own client: a main of about ${MEGABYTES + 8} MB on \
XFS with reflink in a loopback file. *Chain*: ${LENGTH} databases, each made of the one before, in which ${UPDATES} rows were \
updated first. *Fan*: ${LENGTH} databases of main. *Clients*: ${CLIENTS} databases concurrently, ${LENGTH} of each of ${MAINS} mains; a \
project creates three at a time, and PostgreSQL clones one database once at a time. *Crowd*: ${CROWD} direct sessions work in a main \
without a pause of more than ${REST_MS} ms, and connect again when they are ended, while ${WORKERS} workers each make, read and delete ${TURNS} databases of it; \
without us a worker ends the sessions until \`CREATE DATABASE\` has found none, so that the crowd works less, and with us the time of a deletion is that until the database is gone. By \`POST …/branches\`, until the 201, and by \
\`CREATE DATABASE … STRATEGY FILE_COPY\` with \`file_copy_method = clone\` in one session for each client. Interleaved in ${ROUNDS} \
rounds after a first one that is discarded; the median creation of each round is taken. Everything runs on this machine. For \
comparison, the medians that BranchBench publishes for a chain of 16: Neon 160 ms, Xata 42,500 ms, Tiger 51,400 ms, Dolt 9.5 ms. \
They were measured elsewhere, over a network and on other hardware, so they only show orders of magnitude.`;

/** Measures branches of branches, and many concurrently. @param signal aborts it */
export const measureBranchbenchShape = (signal: AbortSignal): Promise<Report> =>
  // A main gets more logins in a minute than one client may make.
  onXfsStack(signal, DISK_BYTES, measure, {
    ...UNLIMITED,
    CONNECTION_ATTEMPTS_PER_MINUTE: '10000',
    BRANCH_LIMIT_MAX: String(2 * WORKERS),
    BRANCH_CONNECTIONS: '200',
    PROJECT_CONNECTIONS: '400',
    TENANT_CONNECTIONS: '400',
  });

type Shape = 'chain' | 'fan' | 'clients';
type Times = Record<'all' | 'firstAndLast' | 'crowd' | 'crowdWork', Series>;

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const mains: FilledMain[] = [];
  for (let n = 1; n <= MAINS; n++) {
    const filled = await filledMain(api, `Main ${n}`, MEGABYTES);
    await raiseCaps(stack, api, filled, 2 * WORKERS);
    mains.push(filled);
  }
  const sessions = await Promise.all(Array.from({ length: CLIENTS }, () => connectToClone(stack)));
  const series: Times = { all: {}, firstAndLast: {}, crowd: {}, crowdWork: {} };
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
        'crowd, bare clones': inCrowd(first, series, bareTurns(stack, sessions, first)),
        'crowd, branches': inCrowd(first, series, branchTurns(api, first)),
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
          name: 'with branches ÷ with bare clones, crowd',
          measured: medianRatio(medians['crowd, branches'], medians['crowd, bare clones']),
          limit: CROWD_LIMIT,
          unit: '×',
        },
        ...(['creation', 'reading', 'deletion'] as const).map((part) => ({
          name: `${part}, crowd: a branch ÷ a bare clone`,
          measured:
            median(series.crowd[`crowd, branches, ${part}`] ?? []) /
            median(series.crowd[`crowd, bare clones, ${part}`] ?? []),
          limit: null,
          unit: '×' as const,
        })),
        {
          name: `branch ${LENGTH} of the chain ÷ the first`,
          measured: ofChain('last') / ofChain('first'),
          limit: null,
          unit: '×',
        },
      ],
      times: {
        'Median creation of a round; of a crowd, the whole round': medians,
        'Every creation': series.all,
        'By depth': series.firstAndLast,
        'What each worker does in a crowd': series.crowd,
      },
      counts: { 'What the crowd does meanwhile': series.crowdWork },
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

/** A database that a worker has made. */
interface Made {
  read: () => Promise<unknown>;
  drop: () => Promise<unknown>;
}

/** @param worker from 0 @param name of the database */
type Make = (worker: number, name: string) => Promise<Made>;

const READ = 'select sum(balance) from account where id <= 1000';

/** Lets the workers take their turns while the crowd works in main. @returns milliseconds until the last one has ended */
const inCrowd =
  ({ main }: FilledMain, { crowd, crowdWork }: Times, make: Make) =>
  async (name: string) => {
    const over = new AbortController();
    const done = { updates: 0, lost: 0 };
    const members = Array.from({ length: CROWD }, (_, n) => member(main.direct_url, n, done, over.signal));
    try {
      const ms = await timed(() =>
        Promise.all(Array.from({ length: WORKERS }, (_, n) => work(n, name, crowd, make))),
      );
      addSample(crowdWork, `${name}, updates per second`, (done.updates * 1_000) / ms);
      addSample(crowdWork, `${name}, sessions that were ended`, done.lost);
      return ms;
    } finally {
      over.abort();
      await Promise.all(members);
    }
  };

async function work(worker: number, name: string, series: Series, make: Make): Promise<void> {
  const measure = async <T>(part: string, action: () => Promise<T>): Promise<T> => {
    const start = performance.now();
    const result = await action();
    addSample(series, `${name}, ${part}`, performance.now() - start);
    return result;
  };
  for (let turn = 0; turn < TURNS; turn++) {
    const made = await measure('creation', () => make(worker, `crowd-${worker}-${turn}`));
    await measure('reading', made.read);
    await measure('deletion', made.drop);
  }
}

/** A session that works, and connects again when it was ended. @param done counts what all of them do */
async function member(
  url: string,
  n: number,
  done: { updates: number; lost: number },
  signal: AbortSignal,
): Promise<void> {
  while (!signal.aborted) {
    const client = await connect(url).catch(() => null);
    try {
      while (client && !signal.aborted) {
        await client.query('update account set balance = balance + 1 where id = $1', [n + 1]);
        done.updates += 1;
        await sleep(Math.random() * REST_MS);
      }
    } catch {
      // By either side's clone.
      done.lost += 1;
    } finally {
      await client?.end().catch(() => {});
    }
    await sleep(Math.random() * REST_MS);
  }
}

const isBusy = (error: unknown) => /SOURCE_BUSY|HOST_BUSY|PROJECT_BUSY/.test(String(error));

const branchTurns =
  (api: Api, { project }: FilledMain): Make =>
  async (_, name) => {
    for (;;) {
      try {
        const branch = await api.branch(project.id, name, { include: ['credentials'] });
        const { credentials } = branch as unknown as { credentials: { direct_url: string } };
        return {
          read: () => query(credentials.direct_url, READ),
          drop: () => purgeBranch(api, project.id, branch.id),
        };
      } catch (error) {
        if (!isBusy(error)) throw error;
        await sleep(AGAIN_AFTER_MS);
      }
    }
  };

const bareTurns =
  (stack: Stack, sessions: readonly pg.Client[], { main }: FilledMain): Make =>
  async (worker, name) => {
    const [session, ending] = [sessions[2 * worker], sessions[2 * worker + 1]] as [pg.Client, pg.Client];
    let isOver = false;
    const making = makeBareClone(session, main.database, name).finally(() => {
      isOver = true;
    });
    const end = async () => {
      while (!isOver) {
        await ending.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [
          main.database,
        ]);
        await sleep(5);
      }
    };
    await Promise.all([making, end()]);
    return {
      read: async () => {
        const client = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate', name);
        await client.query(READ).finally(() => client.end());
      },
      drop: () => session.query(`drop database "${name}"`),
    };
  };
