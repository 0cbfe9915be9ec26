import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { ROOT } from '../../../dev/build/repository.ts';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import type { StackState } from '../../../dev/stack/stack.ts';
import { eventually } from '../eventually.ts';

export interface Ending {
  code: number | null;
  stdout: string;
  stderr: string;
}

export interface StartedStack {
  process: ChildProcess;
  /** Standard output so far. */
  output(): string;
  ended: Promise<Ending>;
}

/** `node dev/start.ts` in a process of its own, which is what `npm start` runs after its set-up. */
export function runStart(
  env: Record<string, string>,
  { root = ROOT, node = process.execPath }: { root?: string; node?: string } = {},
): StartedStack {
  const child = spawn(node, [join(root, 'dev/start.ts')], {
    cwd: root,
    env: { PATH: process.env.PATH, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const texts = { stdout: '', stderr: '' };
  for (const name of ['stdout', 'stderr'] as const) {
    child[name].setEncoding('utf8').on('data', (chunk: string) => {
      texts[name] += chunk;
    });
  }
  const ended = once(child, 'close').then(([code]) => ({ code, ...texts }));
  return { process: child, output: () => texts.stdout, ended };
}

/** Waits for the line that reports it. @throws Error with its output when it ends instead */
export async function untilReady(started: StartedStack): Promise<void> {
  const ending = started.ended.then(({ stdout, stderr }) => {
    throw new Error(`it ended: ${stdout}${stderr}`);
  });
  const ready = eventually(async () => {
    if (!started.output().includes('branchgate is ready')) throw new Error(`not ready: ${started.output()}`);
  }, 120);
  await Promise.race([ready, ending]);
}

/** Interrupts it as Ctrl-C does. */
export function interrupt(started: StartedStack): Promise<Ending> {
  started.process.kill('SIGINT');
  return started.ended;
}

export const readStackFile = (devDir: string) =>
  JSON.parse(readFileSync(devFolder(devDir).stackFile, 'utf8')) as StackState;
