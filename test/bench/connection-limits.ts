import { Api, type ProjectBody } from '../support/api.ts';
import {
  attempt,
  attempts,
  type Outcome,
  type Target,
  targetOfUrl,
  tried,
} from '../support/host/attempts.ts';
import { dropBranch } from '../support/records/jobs.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { median, runInterleaved } from './rounds.ts';

const ROUNDS = 10;
const IN_A_ROW = 70;
const CROWD = 200;
/** The specification's 50, and who is already connecting when the last of them is logged. */
const IN_A_ROW_MAX = 52;

const METHOD = `A branch admits 50 connection attempts a minute. The agent learns of them from the servers' logs, so how many are \
admitted (their password is checked) depends on how soon it is scheduled next to a client that never waits. Agent, \
servers and client are separate processes. Interleaved in ${ROUNDS} rounds, each time with a new branch and the \
correct password: ${IN_A_ROW} sequential attempts, each started when the one before is answered, and ${CROWD} \
concurrent attempts, on either port. Of concurrent attempts, those are admitted that are connecting when the fiftieth \
is logged: their number has no limit.`;

/** @param signal ends it */
export async function measureConnectionLimits(signal: AbortSignal): Promise<Report> {
  const stack = await startStack({ env: UNLIMITED, restarts: false });
  try {
    const api = new Api(stack.url, await stack.token());
    const project = await api.project('Limits');
    const admitted =
      (port: 'direct_url' | 'database_url', connect: (target: Target) => Promise<Outcome[]>) => async () => {
        signal.throwIfAborted();
        return countAdmitted(api, project, port, connect);
      };
    const inARow = (target: Target) => attempts(IN_A_ROW, target);
    const atOnce = (target: Target) => Promise.all(Array.from({ length: CROWD }, () => attempt(target)));
    const counts = await runInterleaved(ROUNDS, {
      'in a row, direct': admitted('direct_url', inARow),
      'in a row, pooled': admitted('database_url', inARow),
      'at once, direct': admitted('direct_url', atOnce),
      'at once, pooled': admitted('database_url', atOnce),
    });
    return {
      title: 'Connection limits',
      method: METHOD,
      goals: Object.entries(counts).map(([name, samples]) => ({
        name,
        measured: median(samples),
        limit: name.startsWith('in a row') ? IN_A_ROW_MAX : null,
        unit: 'attempts',
      })),
      counts: { 'Attempts that got in': counts },
    };
  } finally {
    await stack.stop();
  }
}

async function countAdmitted(
  api: Api,
  project: ProjectBody,
  port: 'direct_url' | 'database_url',
  connect: (target: Target) => Promise<Outcome[]>,
): Promise<number> {
  const branch = await api.branch(project.id, 'crowded');
  const credentials = await api.credentials(project.id, branch.id);
  const admitted = tried(await connect(targetOfUrl(credentials[port])));
  await dropBranch(api, project.id, branch.id);
  return admitted;
}
