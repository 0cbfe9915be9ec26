import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pollUntil } from '../../agent/process/loops.ts';
import { processesOf, processorMs } from './processor-time.ts';

/** Processor time of a function with all that it calls, in milliseconds. */
export interface Frame {
  name: string;
  ms: number;
  callees: Frame[];
}

/** A recording that has begun. @returns its samples: the function that was called last stands last */
type Recording = () => Promise<Stack[]>;

interface Stack {
  functions: string[];
  ms: number;
}

const EVERY_MICROSECONDS = 250;
const PER_SECOND = 1e6 / EVERY_MICROSECONDS;
/** Of the stack that `perf` copies with each sample, to find the callers without frame pointers. */
const STACK_BYTES = 16_384;
const PERF_STARTS = { within: 10_000, every: 20 };

/** How a process is sampled: its JavaScript by the inspector at this port, or its functions by the kernel. */
export type Sampled = { pid: number; inspector: number } | { pid: number };

/**
 * The flame of one of `count` pieces of work, which `work` does all. What the samples do not cover of the processor time is
 * the root's own: the runtime beneath the JavaScript, and its other threads.
 * @param ms processor time of one without a recording, which slows it down
 * @returns null where the kernel's samples cannot be had
 */
export async function flameOf(
  name: string,
  sampled: Sampled,
  { count, ms, work }: { count: number; ms: number; work: () => Promise<unknown> },
): Promise<Frame | null> {
  const end = await ('inspector' in sampled ? recordScripts(sampled.inspector) : recordProcess(sampled.pid));
  if (!end) return null;
  const before = processorMs(sampled.pid);
  await work();
  const spent = (processorMs(sampled.pid) - before) / count;
  const stacks = await end();
  const share = Math.min(1, ms / spent) / count;
  return {
    ...folded(
      name,
      stacks.map(({ functions, ms: own }) => ({ functions, ms: own * share })),
    ),
    ms,
  };
}

/** Joins equal beginnings of stacks. */
export function folded(name: string, stacks: readonly Stack[]): Frame {
  const root: Frame = { name, ms: 0, callees: [] };
  for (const { functions, ms } of stacks) {
    root.ms += ms;
    let caller = root;
    for (const called of functions) {
      let frame = caller.callees.find((candidate) => candidate.name === called);
      if (!frame) {
        frame = { name: called, ms: 0, callees: [] };
        caller.callees.push(frame);
      }
      frame.ms += ms;
      caller = frame;
    }
  }
  return root;
}

interface ProfileNode {
  id: number;
  callFrame: { functionName: string; url: string; lineNumber: number };
  children?: number[];
}

interface Profile {
  nodes: ProfileNode[];
  samples: number[];
}

/** Samples all isolates of the runtime. Each is sampled while it runs, so the samples are counted, not their distances. */
async function recordScripts(port: number): Promise<Recording> {
  const found = (await (await fetch(`http://127.0.0.1:${port}/json`)).json()) as {
    id: string;
    webSocketDebuggerUrl?: string;
  }[];
  const isolates = await Promise.all(
    found.map(async ({ id, webSocketDebuggerUrl }) => {
      const send = await openInspector(webSocketDebuggerUrl ?? `ws://127.0.0.1:${port}/${id}`);
      await send('Profiler.enable');
      await send('Profiler.setSamplingInterval', { interval: EVERY_MICROSECONDS });
      await send('Profiler.start');
      return { name: found.length > 1 ? [id] : [], send };
    }),
  );
  return async () => {
    const stacks = isolates.map(async ({ name, send }) => {
      const { profile } = (await send('Profiler.stop')) as { profile: Profile };
      send.close();
      return stacksOf(profile).map(({ functions, ms }) => ({ functions: [...name, ...functions], ms }));
    });
    return (await Promise.all(stacks)).flat();
  };
}

/** @returns calls a method of the inspector */
async function openInspector(url: string) {
  const socket = new WebSocket(url);
  const replies = new Map<number, (reply: { result?: unknown; error?: { message: string } }) => void>();
  let last = 0;
  socket.addEventListener('message', ({ data }) => {
    const reply = JSON.parse(String(data));
    replies.get(reply.id)?.(reply);
  });
  await once(socket, 'open');
  const send = async (method: string, params = {}) => {
    const { promise, resolve } = Promise.withResolvers<{ result?: unknown; error?: { message: string } }>();
    last += 1;
    replies.set(last, resolve);
    socket.send(JSON.stringify({ id: last, method, params }));
    const { result, error } = await promise;
    if (error) throw new Error(`${method}: ${error.message}`);
    return result;
  };
  return Object.assign(send, { close: () => socket.close() });
}

function stacksOf({ nodes, samples }: Profile): Stack[] {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const callers = new Map(
    nodes.flatMap(({ id, children = [] }) => children.map((child) => [child, id] as const)),
  );
  return samples.flatMap((id) => {
    const functions: string[] = [];
    for (let at: number | undefined = id; at !== undefined; at = callers.get(at)) {
      const node = byId.get(at);
      if (node) functions.unshift(nameOf(node));
    }
    if (functions.at(-1) === '(idle)') return [];
    return [{ functions: functions.filter((name) => name !== '(root)'), ms: EVERY_MICROSECONDS / 1000 }];
  });
}

/** A function without a name has that of its file, and its line. */
function nameOf({ callFrame: { functionName, url, lineNumber } }: ProfileNode): string {
  return functionName || `${url.split('/').at(-1)}:${lineNumber + 1}`;
}

/** @returns why the kernel's samples cannot be had, or null */
export const perfHindrance = (): string | null =>
  spawnSync('perf', ['--version']).status === 0 ? null : 'the program perf is missing';

/** Samples a process and its children. @returns null if that is not possible or not allowed */
async function recordProcess(pid: number): Promise<Recording | null> {
  if (perfHindrance()) return null;
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-perf-'));
  const file = join(folder, 'samples');
  const pids = processesOf(pid).join();
  const perf = spawn(
    'perf',
    [
      'record',
      '-q',
      '-e',
      'cpu-clock',
      '-F',
      String(PER_SECOND),
      '--call-graph',
      `dwarf,${STACK_BYTES}`,
      '-o',
      file,
      '-p',
      pids,
    ],
    { stdio: 'ignore' },
  );
  const exited = once(perf, 'exit');
  const hasBegun = async () => perf.exitCode !== null || existsSync(file);
  await pollUntil(hasBegun, PERF_STARTS);
  if (perf.exitCode !== null) {
    rmSync(folder, { recursive: true });
    return null;
  }
  return async () => {
    perf.kill('SIGINT');
    await exited;
    const script = spawnSync('perf', ['script', '--no-inline', '-i', file, '-F', 'pid,ip,sym'], {
      encoding: 'utf8',
      maxBuffer: 2 ** 30,
    });
    rmSync(folder, { recursive: true });
    return readPerf(script.stdout);
  };
}

/** What a backend does until it runs the statements of its client is the same in every sample. */
const BEFORE_STATEMENTS = 'PostgresMain';

/** Reads what `perf script` writes of samples: a line with the process, then one for each function, the last call first. */
export const readPerf = (text: string): Stack[] =>
  text
    .split('\n\n')
    .filter((sample) => sample.trim())
    .map((sample) => {
      const functions = sample
        .split('\n')
        .flatMap((line) => /^\s+[0-9a-f]+ (.+)$/.exec(line)?.[1] ?? [])
        .filter((name) => name !== '[unknown]')
        .toReversed();
      return { functions: functions.slice(functions.indexOf(BEFORE_STATEMENTS) + 1), ms: 1000 / PER_SECOND };
    });
