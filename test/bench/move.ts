import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { STATE } from '../support/host/follower.ts';
import { runAt, TwoHosts, type Writer } from '../support/stack/two-hosts.ts';
import type { Report } from './report.ts';

/** A project that moves to and fro while clients write to its `main`. */
interface Case {
  name: string;
  branches: number;
  writers: number;
  /** Milliseconds between two transactions of a writer; 0: without a pause. */
  everyMs: number;
  moves: number;
}

const LARGE = { branches: 20, writers: 10, everyMs: 33 };
const cases = (moves: number): Case[] => [
  { name: 'one writer', branches: 2, writers: 1, everyMs: 0, moves },
  { name: `${LARGE.branches} branches`, ...LARGE, moves: Math.ceil(moves / 10) },
];

const LIMIT_MS = 1_000;

const method = (
  moves: number,
) => `A stack with two hosts on this machine. A project with \`main\` and 2 branches moves ${moves} times from one to the \
other and back, while one client writes to \`main\` without a pause; one with ${LARGE.branches} branches moves ${Math.ceil(moves / 10)} times, while ${LARGE.writers} clients write \
${Math.round((1000 * LARGE.writers) / LARGE.everyMs)} transactions a second. A client reads its URL from the API whenever its connection is lost, because the hosts \
have different ports here. **Time without an answer:** the longest time between two commits of one client in one move, from the request to the first commit on the other host. **Lost:** commits that \
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

async function moveOnce(two: TwoHosts, projectId: string, writers: Writer[]): Promise<Move> {
  for (const writer of writers) writer.longestGap = 0;
  await two.begin(projectId, two.otherThan(await two.hostOf(projectId)));
  const { job } = await two.hasEnded(projectId, 'succeeded');
  const committed = writers.map((writer) => writer.committed);
  // The gap ends with the first commit on the other host.
  while (writers.some((writer, n) => writer.committed === committed[n]))
    await new Promise((resolve) => setTimeout(resolve, 20));
  const steps = Object.fromEntries(
    job.steps.map(({ name, started_at, finished_at }) => [
      name,
      Date.parse(finished_at) - Date.parse(started_at),
    ]),
  );
  const phases = { ...phasesOf(two, job.id), open: steps.open ?? 0 };
  return { gap: Math.max(...writers.map(({ longestGap }) => longestGap)), phases, steps };
}

interface Outcome {
  moves: Move[];
  /** Commits that are not there, or there twice, and sums that are not right. */
  wrong: number;
}

async function moveAll(
  two: TwoHosts,
  signal: AbortSignal,
  { name, branches, writers, everyMs, moves }: Case,
): Promise<Outcome> {
  const names = Array.from({ length: branches }, (_, n) => `pr-${n + 1}`);
  const { id } = await two.project(name, { app_key: `measured_${branches}` });
  await two.platform.patch(`/platform/v1/projects/${id}`, { branch_limit: branches + 1 });
  for (const branch of names) await two.api.branch(id, branch);
  const writing = Array.from({ length: writers }, () => two.writer(id, everyMs));
  const moved: Move[] = [];
  try {
    for (let n = 0; n < moves; n += 1) {
      signal.throwIfAborted();
      const move = await moveOnce(two, id, writing);
      moved.push(move);
      console.log(`${name}, move ${n + 1}: ${Math.round(move.gap)} ms ${JSON.stringify(move.phases)}`);
    }
  } finally {
    await Promise.all(writing.map((writer) => writer.stop()));
  }
  const sum = (of: (writer: Writer) => number) => writing.reduce((all, writer) => all + of(writer), 0);
  const committed = sum((writer) => writer.committed);
  const [state] = await runAt<{ sum: number; transfers: number; counted: number }>(
    (await two.api.credentials(id, 'main')).direct_url,
    STATE,
  );
  const counted = Number(state?.counted);
  const lost =
    Math.max(0, committed - counted) + Math.max(0, counted - committed - sum((writer) => writer.unknown));
  await two.api.delete(`/api/v1/projects/${id}`);
  const isWhole = state?.transfers === state?.counted && state?.sum === 50_000;
  return { moves: moved, wrong: lost + (isWhole ? 0 : 1) };
}

/** Measures how long a project that moves is without an answer. */
export async function measureMove(signal: AbortSignal, count: number): Promise<Report> {
  const two = await TwoHosts.start();
  const outcomes: [string, Outcome][] = [];
  try {
    for (const one of cases(count)) outcomes.push([one.name, await moveAll(two, signal, one)]);
  } finally {
    await two.stack.stop();
  }
  const gapsOf = ({ moves }: Outcome) => moves.map(({ gap }) => gap);
  const byName = ({ moves }: Outcome, of: (move: Move) => Record<string, number>) =>
    Object.fromEntries(
      Object.keys(moves[0] ? of(moves[0]) : {}).map((name) => [
        name,
        moves.map((move) => of(move)[name] ?? 0),
      ]),
    );
  const tables = <T>(of: (outcome: Outcome) => T, caption: string) =>
    outcomes.map(([name, outcome]) => [`${caption}, ${name}`, of(outcome)] as const);
  return {
    title: 'A project that moves',
    method: method(count),
    goals: outcomes.flatMap(([name, outcome]) => [
      {
        name: `longest time without an answer, ${name}`,
        unit: 'ms' as const,
        measured: Math.max(...gapsOf(outcome)),
        limit: LIMIT_MS,
      },
      {
        name: `commits lost, or there twice, ${name}`,
        unit: 'items' as const,
        measured: outcome.wrong,
        limit: 0,
      },
    ]),
    times: {
      'Time without an answer, of each move': Object.fromEntries(
        outcomes.map(([name, outcome]) => [name, gapsOf(outcome)]),
      ),
      ...Object.fromEntries(
        tables((outcome) => byName(outcome, ({ phases }) => phases), 'Phases of the fence'),
      ),
      ...Object.fromEntries(tables((outcome) => byName(outcome, ({ steps }) => steps), 'Steps of the job')),
    },
    counts: Object.fromEntries(
      tables((outcome) => histogram(gapsOf(outcome)), 'Moves by their time without an answer'),
    ),
  };
}
