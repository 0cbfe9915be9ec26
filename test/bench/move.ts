import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { STATE } from '../support/host/follower.ts';
import { runAt, TwoHosts, type Writer } from '../support/stack/two-hosts.ts';
import type { Report } from './report.ts';

const BRANCHES = ['pr-1', 'pr-2'];
const LIMIT_MS = 1_000;

const method = (
  moves: number,
) => `A stack with two hosts on this machine. A project with \`main\` and ${BRANCHES.length} branches moves ${moves} times from one to the \
other and back, while one client writes to \`main\` without a pause. It reads its URL from the API whenever its connection is lost, because the hosts \
have different ports here. **Time without an answer:** the longest time between two commits of one move. **Lost:** commits that \
were answered and are not there, or there twice. **Phases:** the gateway's log of the same moves. \`read\` reads the access, \`close\` ends the sessions at the \
former host, which is when the time without an answer begins, \`changes\` waits for the last changes and stops following, \`switch\` is the statement that \
decides, and \`open\` admits clients to the other host.`;

/** Of one move, in milliseconds. */
interface Move {
  gap: number;
  phases: Record<string, number>;
  steps: Record<string, number>;
}

const CLASSES = [250, 500, 750, 1_000, 1_500, 2_000, 3_000];

/** How many values are below each limit, and not below the one before. */
function histogram(values: readonly number[]): Record<string, number[]> {
  const from = [0, ...CLASSES];
  return Object.fromEntries(
    from.map((low, n) => {
      const high = CLASSES[n] ?? Number.POSITIVE_INFINITY;
      const name = high === Number.POSITIVE_INFINITY ? `from ${low} ms` : `${low} to ${high} ms`;
      return [name, [values.filter((value) => value >= low && value < high).length]];
    }),
  );
}

/** The gateway logs how long each part of the fence has taken. */
function phasesOf(two: TwoHosts, jobId: string): Record<string, number> {
  const lines = readFileSync(join(devFolder(two.stack.devDir).logs, 'gateway.log'), 'utf8').split('\n');
  const line = lines.findLast((one) => one.includes('"move.switched"') && one.includes(jobId)) ?? '{}';
  const fields = Object.entries(JSON.parse(line.slice(line.indexOf('{'))) as Record<string, unknown>);
  return Object.fromEntries(
    fields.flatMap(([name, value]) =>
      name.endsWith('_ms') && typeof value === 'number' ? [[name.slice(0, -'_ms'.length), value]] : [],
    ),
  );
}

async function moveOnce(two: TwoHosts, projectId: string, writer: Writer): Promise<Move> {
  writer.longestGap = 0;
  await two.begin(projectId, two.otherThan(await two.hostOf(projectId)));
  const { job } = await two.hasEnded(projectId, 'succeeded');
  const { committed } = writer;
  // The gap ends with the first commit on the other host.
  while (writer.committed === committed) await new Promise((resolve) => setTimeout(resolve, 20));
  const steps = Object.fromEntries(
    job.steps.map(({ name, started_at, finished_at }) => [
      name,
      Date.parse(finished_at) - Date.parse(started_at),
    ]),
  );
  const phases = { ...phasesOf(two, job.id), open: steps.open ?? 0 };
  return { gap: writer.longestGap, phases, steps };
}

/** Measures how long a project that moves is without an answer. */
export async function measureMove(signal: AbortSignal, count: number): Promise<Report> {
  const two = await TwoHosts.start();
  const moves: Move[] = [];
  let wrong = 0;
  try {
    const project = await two.project('Measured shop', { app_key: 'measured' }, BRANCHES);
    const writer = two.writer(project.id);
    for (let n = 0; n < count; n += 1) {
      signal.throwIfAborted();
      moves.push(await moveOnce(two, project.id, writer));
      const { gap = 0, phases } = moves.at(-1) ?? {};
      console.log(`move ${n + 1}: ${Math.round(gap)} ms ${JSON.stringify(phases)}`);
    }
    const { committed, unknown } = await writer.stop();
    const [state] = await runAt<{ sum: number; transfers: number; counted: number }>(
      (await two.api.credentials(project.id, 'main')).direct_url,
      STATE,
    );
    const counted = Number(state?.counted);
    const lost = Math.max(0, committed - counted) + Math.max(0, counted - committed - unknown);
    wrong = lost + (state?.transfers === state?.counted && state?.sum === 50_000 ? 0 : 1);
  } finally {
    await two.stack.stop();
  }
  const gaps = moves.map(({ gap }) => gap);
  const byName = (of: (move: Move) => Record<string, number>) =>
    Object.fromEntries(
      Object.keys(moves[0] ? of(moves[0]) : {}).map((name) => [
        name,
        moves.map((move) => of(move)[name] ?? 0),
      ]),
    );
  return {
    title: 'A project that moves',
    method: method(count),
    goals: [
      { name: 'longest time without an answer', measured: Math.max(...gaps), limit: LIMIT_MS, unit: 'ms' },
      { name: 'commits lost, or there twice', measured: wrong, limit: 0, unit: 'items' },
    ],
    times: {
      'Time without an answer, of each move': { 'one writer': gaps },
      'Phases of the fence': byName(({ phases }) => phases),
      'Steps of the job': byName(({ steps }) => steps),
    },
    counts: { 'Moves by their time without an answer': histogram(gaps) },
  };
}
