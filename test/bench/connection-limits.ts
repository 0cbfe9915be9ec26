import { Api, type ProjectBody } from '../support/api.ts';
import {
  attempt,
  attempts,
  type Outcome,
  type Target,
  targetOfUrl,
  tried,
} from '../support/host/attempts.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { startStack, UNLIMITED } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { median, runInterleaved } from './rounds.ts';

const ROUNDS = 10;
const SEQUENTIAL = 70;
const CONCURRENT = 200;
/**
 * Specification 8 allows 50; clients that are already connecting when the last one is logged are admitted
 * too.
 */
const SEQUENTIAL_MAX = 52;

const METHOD = `A branch admits 50 connection attempts a minute. The agent learns of them from the servers' logs, so how many are \
admitted (their password is checked) depends on how soon it is scheduled next to a client that never waits. Agent, \
servers and client are separate processes. Interleaved in ${ROUNDS} rounds, each time with a new branch and the \
correct password: ${SEQUENTIAL} sequential attempts, each started when the one before is answered, and ${CONCURRENT} \
concurrent attempts, on either port. Of concurrent attempts, those are admitted that are connecting when the fiftieth \
is logged: their number has no limit.`;

/** @param signal aborts it */
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
    const sequential = (target: Target) => attempts(SEQUENTIAL, target);
    const concurrent = (target: Target) =>
      Promise.all(Array.from({ length: CONCURRENT }, () => attempt(target)));
    const counts = await runInterleaved(ROUNDS, {
      'sequential, direct': admitted('direct_url', sequential),
      'sequential, pooled': admitted('database_url', sequential),
      'concurrent, direct': admitted('direct_url', concurrent),
      'concurrent, pooled': admitted('database_url', concurrent),
    });
    return {
      title: 'Connection limits',
      method: METHOD,
      goals: Object.entries(counts).map(([name, samples]) => ({
        name,
        measured: median(samples),
        limit: name.startsWith('sequential') ? SEQUENTIAL_MAX : null,
        unit: 'attempts',
      })),
      counts: { 'Admitted attempts': counts },
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
  await purgeBranch(api, project.id, branch.id);
  return admitted;
}
