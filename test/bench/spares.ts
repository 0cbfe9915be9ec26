import { setTimeout as sleep } from 'node:timers/promises';
import { Api, type BranchBody, FROM_LOOPBACK } from '../support/api.ts';
import { Load } from '../support/load.ts';
import { percentile } from '../support/percentile.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { type Stack, UNLIMITED } from '../support/stack/stack.ts';
import {
  connectToClone,
  countReadySpares,
  makeBareClone,
  timeBareClone,
  untilSparesAreReady,
} from './bare-clone.ts';
import { addDurations, creationParts } from './creation-steps.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { addSample, medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const MEGABYTES = 20;
const CONCURRENT = 16;
const BATCH = 32;
const ROUNDS = 7;
/** Of the neighbour's rounds. */
const WINDOWS = 6;
/** Of the neighbour, and how long each pauses between two transactions, on average. */
const CLIENTS = 4;
const PAUSE_MS = 10;
/** Longer than the rest between two spares. */
const WINDOW_MS = 6_000;
/** Of the neighbour's p99, while spares are made, against the same without. */
const NEIGHBOUR_LIMIT = 1.2;

const METHOD = `A main of about ${MEGABYTES + 8} MB on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all \
on this machine. Interleaved, ${ROUNDS} rounds after a first one that is discarded: one bare clone of main without sessions \
(\`CREATE DATABASE … STRATEGY FILE_COPY\`, \`file_copy_method = clone\`); one branch of a snapshot that has ${BATCH} spares, and of one \
that has none, until its 201; ${CONCURRENT} bare clones in sequence in one open session, and ${CONCURRENT} branches by requests in \
parallel; a batch of ${BATCH} branches; and ${CLIENTS} clients of a neighbouring project that write through its pooler, with a pause of \
${PAUSE_MS} ms on average between two transactions, in ${WINDOWS} further rounds, for ${WINDOW_MS / 1000} s without anything else, and for as long while the agent makes the ${BATCH} spares which a batch has taken (it makes the others once nobody works). Before each side all spares are ready and no clone runs. Branches are leased, recorded, have \
three logins each, rules on both ports and a pooler entry, and each was logged in to. The parts are those of the gateway's steps and what it does around them. The limits apply to the median of the ratios in \
each round.`;

/** Measures branches of a snapshot with spares. @param signal aborts it */
export const measureSpares = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, {
    ...UNLIMITED,
    LEASED_BRANCH_LIMIT: String(2 * BATCH),
  });

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const { project, main } = await filledMain(api, 'Spares', MEGABYTES);
  const path = `/api/v1/projects/${project.id}`;
  const neighbour = await filledMain(api, 'Neighbour', MEGABYTES);
  const load = await Load.start(neighbour.main.database_url, CLIENTS, PAUSE_MS);
  await load.connected;
  await load.pause();
  const snapshotWith = async (spares: number) => {
    const { body } = await api.post<{ id: string }>(`${path}/branches/main/snapshots`, {});
    await api.patch(`${path}/snapshots/${body.id}`, { spares });
    return body.id;
  };
  const spareless = await snapshotWith(0);
  const prepared = await snapshotWith(BATCH);
  const untilReady = () => untilSparesAreReady(session, BATCH);
  const steps: Series = {};
  const refills: Series = {};
  let made = 0;
  const create = async (snapshot_id: string) => {
    made += 1;
    const request = { branch_name: `one-${made}`, snapshot_id, lease_seconds: 3600 };
    const response = await api.post<BranchBody>(`${path}/branches`, request, FROM_LOOPBACK);
    if (response.status !== 201) throw new Error(JSON.stringify(response.body));
    return response.body;
  };
  const purge = async (branches: readonly BranchBody[]) => {
    for (const { id } of branches) await purgeBranch(api, project.id, id);
  };
  const one = async (snapshot: string) => {
    await untilReady();
    const branches: BranchBody[] = [];
    const from = Date.now();
    const ms = await timed(async () => {
      branches.push(await create(snapshot));
    });
    const call = { from, to: Date.now() };
    if (snapshot === prepared) addDurations(steps, await creationParts(api, project.id, [call]));
    await purge(branches);
    return ms;
  };
  const bareClones = async () => {
    const names = Array.from({ length: CONCURRENT }, (_, n) => `bare_${n}`);
    const ms = await timed(async () => {
      for (const name of names) await makeBareClone(session, main.database, name);
    });
    for (const name of names) await session.query(`drop database ${name}`);
    return ms;
  };
  const inParallel = async () => {
    await untilReady();
    let branches: BranchBody[] = [];
    const ms = await timed(async () => {
      branches = await Promise.all(Array.from({ length: CONCURRENT }, () => create(prepared)));
    });
    await purge(branches);
    return ms;
  };
  const createBatch = async () => {
    const request = { count: BATCH, name_prefix: 'round-', snapshot_id: prepared, lease_seconds: 3600 };
    const { body } = await api.post<{ branches: BranchBody[] }>(
      `${path}/branches/batch`,
      request,
      FROM_LOOPBACK,
    );
    return body.branches;
  };
  const batch = async () => {
    await untilReady();
    let branches: BranchBody[] = [];
    const ms = await timed(async () => {
      branches = await createBatch();
    });
    addSample(refills, `making ${BATCH} spares, nobody works`, await timed(untilReady));
    await purge(branches);
    return ms;
  };
  /** The p99 of the neighbour's transactions that end within a window of time. */
  const neighbour99 = async () => {
    load.resume();
    const start = performance.now();
    await sleep(WINDOW_MS);
    const { times } = load.since(start);
    await load.pause();
    return percentile(times, 0.99);
  };
  const perMinute: Series = {};
  const refill = async () => {
    await untilReady();
    const branches = await createBatch();
    const before = await countReadySpares(session);
    const p99 = await neighbour99();
    const count = (await countReadySpares(session)) - before;
    addSample(perMinute, 'spares a minute', (count * 60_000) / WINDOW_MS);
    await purge(branches);
    return p99;
  };
  try {
    const times = await runInterleaved(
      ROUNDS,
      {
        'bare clone': () => timeBareClone(session, main.database),
        'branch, a spare': () => one(prepared),
        'branch, no spare': () => one(spareless),
        [`${CONCURRENT} bare clones`]: bareClones,
        [`${CONCURRENT} branches in parallel`]: inParallel,
        [`batch of ${BATCH}`]: batch,
      },
      steps,
      refills,
    );
    const p99 = await runInterleaved(
      WINDOWS,
      {
        idle: () => untilReady().then(neighbour99),
        'while spares are made': refill,
      },
      perMinute,
    );
    const ratioOf = (side: keyof typeof times, of: keyof typeof times) => medianRatio(times[side], times[of]);
    return {
      title: 'Spares of snapshots',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        {
          name: 'a branch with a spare ÷ a bare clone',
          measured: ratioOf('branch, a spare', 'bare clone'),
          limit: 0.8,
          unit: '×',
        },
        {
          name: 'a branch with a spare ÷ without',
          measured: ratioOf('branch, a spare', 'branch, no spare'),
          limit: null,
          unit: '×',
        },
        {
          name: 'throughput of branches ÷ bare clones, in parallel',
          measured: ratioOf(`${CONCURRENT} bare clones`, `${CONCURRENT} branches in parallel`),
          limit: 0.4,
          atLeast: true,
          unit: '×',
        },
        {
          name: `a batch of ${BATCH}`,
          measured: (times[`batch of ${BATCH}`] ?? []).toSorted((a, b) => a - b)[ROUNDS >> 1] ?? Number.NaN,
          limit: 1500,
          unit: 'ms',
        },
        {
          name: "neighbour's p99 while spares are made ÷ idle",
          measured: medianRatio(p99['while spares are made'], p99.idle),
          limit: NEIGHBOUR_LIMIT,
          unit: '×',
        },
      ],
      times: {
        Durations: { ...times, ...refills },
        'Parts of a branch with a spare': steps,
        "99th percentile of a round, neighbour's transactions": p99,
      },
      counts: { 'Made next to the neighbour': perMinute },
    };
  } finally {
    await load.stop();
    await session.end();
  }
}
