import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { Api } from '../support/api.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { Report } from './report.ts';
import { median } from './rounds.ts';
import { onXfsStack, serverVersions } from './xfs-stack.ts';

const DISK_BYTES = 12 * 2 ** 30;
const PROJECTS = 100;
/** In addition to `main`. */
const BRANCHES_EACH = 9;
/** Projects whose branches are created in parallel. */
const LANES = 6;
const MEASURE_EVERY_S = 10;
const READINGS = 8;
const READ_EVERY_MS = 6_000;
const LIMIT_MB = 120;

const METHOD = `The agent as its systemd unit runs it, on a host of ${PROJECTS * (1 + BRANCHES_EACH)} branches: ${PROJECTS} projects \
with ${BRANCHES_EACH} each besides main, created through the API and empty, on XFS with reflink. Read ${READINGS} \
times, every ${READ_EVERY_MS / 1000} s, without client requests: the agent polls all sessions every second and \
measures all branches every ${MEASURE_EVERY_S} s, six times as often as by default. First in the process that has just \
created the branches and still has the garbage of that work; then in a restarted process that has completed its \
recovery. The limit applies to *resident* (RSS), in megabytes of 1,000,000 bytes. It includes Node's executable in \
full, about 52 MB that all Node processes of a machine share. *Proportional* (PSS) counts the agent's share of that, \
*anonymous* nothing of it.`;

const FINDINGS = `With Node's default limits the agent had 300 MB after creating the branches and 115 MB after a restart, of which 13.5 \
MB were in use: Node does not collect garbage while the machine has free memory. Hence \`--max-semi-space-size=4\` and \
\`--max-old-space-size=512\` in its unit; below the second limit the heap also grows in smaller steps. One cycle of \
deletion and creation next to 1,000 branches took 0.08 s of processor time without them and 0.12 s with them.`;

/** @param signal aborts it */
export function measureAgentMemory(signal: AbortSignal): Promise<Report> {
  const env = { MEASURE_INTERVAL_SECONDS: String(MEASURE_EVERY_S) };
  return onXfsStack(signal, DISK_BYTES, (stack) => measure(stack, signal), env);
}

async function measure(stack: Stack, signal: AbortSignal): Promise<Report> {
  await makeBranches(new Api(stack.url, await stack.token()), signal);
  const afterWork = await readings(stack, signal);
  await stack.kill('agent');
  await stack.start('agent');
  const afterRestart = await readings(stack, signal);
  return {
    title: 'Memory of the agent',
    method: METHOD,
    setting: await serverVersions(stack),
    goals: [
      {
        name: 'resident, idle after creating 1,000 branches',
        measured: median(afterWork.resident),
        limit: LIMIT_MB,
        unit: 'MB',
      },
      {
        name: 'resident, idle with 1,000 branches, after a restart',
        measured: median(afterRestart.resident),
        limit: LIMIT_MB,
        unit: 'MB',
      },
    ],
    findings: FINDINGS,
    counts: {
      'Megabytes, after creating the branches': afterWork,
      'Megabytes, after a restart': afterRestart,
    },
  };
}

async function makeBranches(api: Api, signal: AbortSignal): Promise<void> {
  let made = 0;
  const fill = async () => {
    while (made < PROJECTS) {
      made += 1;
      const { id } = await api.project(`Project ${made}`);
      for (let n = 1; n <= BRANCHES_EACH; n++) {
        signal.throwIfAborted();
        await api.branch(id, `branch-${n}`);
      }
    }
  };
  await Promise.all(Array.from({ length: LANES }, fill));
}

type Memory = Record<'resident' | 'proportional' | 'anonymous', number[]>;

async function readings({ state }: Stack, signal: AbortSignal): Promise<Memory> {
  const memory: Memory = { resident: [], proportional: [], anonymous: [] };
  for (let reading = 1; reading <= READINGS; reading++) {
    await sleep(READ_EVERY_MS, undefined, { signal });
    const { agent = 0 } = state.pids;
    const text = readFileSync(`/proc/${agent}/smaps_rollup`, 'utf8');
    memory.resident.push(megabytes(text, 'Rss'));
    memory.proportional.push(megabytes(text, 'Pss'));
    memory.anonymous.push(megabytes(text, 'Anonymous'));
  }
  return memory;
}

/** @param text of `smaps_rollup` (proc(5)) */
const megabytes = (text: string, field: string) =>
  (Number(new RegExp(`^${field}: +(\\d+) kB$`, 'm').exec(text)?.[1]) * 1024) / 1_000_000;
