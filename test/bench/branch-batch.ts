import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type BranchBody, FROM_LOOPBACK } from '../support/api.ts';
import { Load } from '../support/load.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import type { Stack } from '../support/stack/stack.ts';
import { connectToClone, endSessions, makeBareClone } from './bare-clone.ts';
import { addDurations, creationSteps } from './creation-steps.ts';
import { filledMain } from './filled-main.ts';
import type { Report } from './report.ts';
import { medianRatio, runInterleaved, type Series, timed } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 8 * 2 ** 30;
const MEGABYTES = 20;
const BRANCHES = 16;
const CLIENTS = 4;
/** Of a client between two transactions, on average. */
const PAUSE_MS = 20;
const ROUNDS = 7;
const LIMIT = 0.5;

const METHOD = `A main of about ${MEGABYTES + 8} MB on XFS with reflink in a loopback file, everything else as \`npm start\` runs it, all \
on this machine. Interleaved, ${ROUNDS} rounds after a first one that is discarded: ${BRANCHES} databases created in \
sequence in one open session by \`CREATE DATABASE … STRATEGY FILE_COPY\` with \`file_copy_method = clone\`, from a main \
without sessions; ${BRANCHES} leased branches in one batch, from the same main; and the same while ${CLIENTS} clients write to \
it through the pooler, with ${PAUSE_MS} ms between two transactions. A batch is measured until its 201. Its branches are \
recorded, have three logins each, rules on both ports and a pooler entry, and each was logged in to as its client will. \
Pauses of main are counted in the pooler's log. The limits apply to the median of the ratios in each round.`;

/** Measures branches per second of a batch, compared with bare clones. @param signal aborts it */
export const measureBranchBatch = (signal: AbortSignal): Promise<Report> =>
  onXfsStack(signal, DISK_BYTES, measure, { LEASED_BRANCH_LIMIT: String(BRANCHES) });

async function measure(stack: Stack): Promise<Report> {
  const api = new Api(stack.url, await stack.token());
  const session = await connectToClone(stack);
  const { project, main } = await filledMain(api, 'Batch', MEGABYTES);
  const path = `/api/v1/projects/${project.id}/branches`;
  const log = join(devFolder(stack.devDir).logs, 'pgbouncer.log');
  const countPauses = () =>
    readFileSync(log, 'utf8').split(`PAUSE '${main.database}' command issued`).length - 1;
  const pauses: number[] = [];
  const steps: Series = {};

  const batch = async () => {
    const before = countPauses();
    let made: BranchBody[] = [];
    const ms = await timed(async () => {
      const request = { count: BRANCHES, name_prefix: 'round-', lease_seconds: 3600 };
      const { body } = await api.post<{ branches: BranchBody[] }>(`${path}/batch`, request, FROM_LOOPBACK);
      made = body.branches;
    });
    pauses.push(countPauses() - before);
    addDurations(steps, await creationSteps(api, project.id));
    for (const { id } of made) await purgeBranch(api, project.id, id);
    return (BRANCHES * 1000) / ms;
  };
  const bareClones = async () => {
    const names = Array.from({ length: BRANCHES }, (_, n) => `bare_${n}`);
    await endSessions(session, main.database);
    const ms = await timed(async () => {
      for (const name of names) await makeBareClone(session, main.database, name);
    });
    for (const name of names) await session.query(`drop database ${name}`);
    return (BRANCHES * 1000) / ms;
  };
  const failures: string[] = [];
  const whileBusy = async (measured: () => Promise<number>) => {
    const load = await Load.start(main.database_url, CLIENTS, PAUSE_MS);
    await load.connected;
    const rate = await measured();
    await load.stop();
    failures.push(...load.since(0).failures);
    return rate;
  };
  try {
    const rates = await runInterleaved(
      ROUNDS,
      {
        'bare clones': bareClones,
        'branches, at rest': batch,
        'branches, busy': () => whileBusy(batch),
      },
      steps,
    );
    const ratio = (state: 'at rest' | 'busy') => ({
      name: `branches ÷ bare clones, ${state}`,
      measured: medianRatio(rates[`branches, ${state}`], rates['bare clones']),
      limit: LIMIT,
      atLeast: true as const,
      unit: '×' as const,
    });
    return {
      title: 'Branches in batches',
      method: METHOD,
      setting: await serverVersions(stack),
      goals: [
        ratio('at rest'),
        ratio('busy'),
        { name: 'pauses of main in a batch', measured: Math.max(...pauses), limit: 1, unit: 'items' },
        { name: 'failed transactions', measured: failures.length, limit: 0, unit: 'transactions' },
      ],
      counts: { 'Created per second': rates },
      times: { 'Steps of a batch': steps },
    };
  } finally {
    await session.end();
  }
}
