import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pollUntil } from '../../agent/process/loops.ts';
import type { OsUser } from './os-user.ts';
import { type Environment, Refusal } from './settings.ts';

/** Signals a process, or the process group `-pid`. Does nothing when it has already ended. */
export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
}

export interface Program {
  name: string;
  command: string;
  args: readonly string[];
  environment: Environment;
  user?: OsUser;
  workFolder: string;
  logFile: string;
  /** Sent one after another until it ends; SIGKILL follows. */
  stopSignals: readonly [NodeJS.Signals, ...NodeJS.Signals[]];
  /** Whether it is ready; `message`: the process reports it itself, by any message to its parent. */
  serves: 'message' | ((pid: number) => boolean | Promise<boolean>);
  /** For a program that starts processes outside its group: resolves when all of them have ended. */
  untilAllEnded?: () => Promise<void>;
}

export interface Part {
  readonly name: string;
  /** Process id, also of its process group; null while it is not running. */
  readonly pid: number | null;
  /** @throws Refusal when it ends or a time limit passes before it is ready */
  start(): Promise<void>;
  /** Sends the stop signals, then SIGKILL. Afterwards no process of it is left. */
  stop(): Promise<void>;
  /** Sends SIGKILL to its process group, which simulates a crash. */
  kill(): Promise<void>;
}

const READY = { within: 60_000, every: 20 };
const NEXT_SIGNAL_AFTER_MS = 1_000;
const FORCE_AFTER_MS = 10_000;
const PAUSE_MS = { first: 100, longest: 5_000 };
/** A process that ran this long is restarted without a longer pause when it ends. */
const STEADY_AFTER_MS = 10_000;

/**
 * Runs a program as the leader of its own process group. Ctrl-C in the terminal does not reach it, so the
 * stack can stop its parts in order, and the remaining processes of a part can be ended as a group.
 * @param options.restarts whether it is restarted after an unexpected end
 * @param options.report called with a line about each unexpected end
 * @param options.onChange called when the process id has changed
 */
export function supervise(
  program: Program,
  options: { restarts: boolean; report: (line: string) => void; onChange: () => void },
): Part {
  let current: { child: ChildProcess; serving: Promise<void>; over: Promise<void> } | null = null;
  let wanted = false;
  let pause = PAUSE_MS.first;

  function launch(): Promise<void> {
    const startedAt = Date.now();
    const child = spawnProgram(program);
    const ended = endOf(child);
    const over = ended.then(async () => {
      endGroup(child);
      await program.untilAllEnded?.();
      current = null;
      options.onChange();
    });
    const serving = Promise.race([ended, waitUntilReady(program, child)]).then(async (failure) => {
      if (failure === null) {
        void ended.then((why) => {
          if (wanted && options.restarts) return restart(why, Date.now() - startedAt, over);
        });
        return;
      }
      endGroup(child);
      await over;
      throw new Refusal(`${program.name} did not start: ${failure}${lastLine(program.logFile)}`);
    });
    current = { child, serving, over };
    options.onChange();
    return serving;
  }

  async function restart(why: string, ranFor: number, over: Promise<void>): Promise<void> {
    options.report(`${program.name} ended (${why}); restarting it`);
    await over;
    if (ranFor > STEADY_AFTER_MS) pause = PAUSE_MS.first;
    for (;;) {
      await sleep(pause, undefined, { ref: false });
      pause = Math.min(pause * 2, PAUSE_MS.longest);
      if (!wanted || current) return;
      const failure = await launch().then(
        () => null,
        (error: Error) => error.message,
      );
      if (failure === null || !wanted) return;
      options.report(failure);
    }
  }

  return {
    name: program.name,
    get pid() {
      return current?.child.pid ?? null;
    },
    start() {
      wanted = true;
      return current?.serving ?? launch();
    },
    async stop() {
      wanted = false;
      if (!current) return;
      const { child, over } = current;
      for (const [index, signal] of program.stopSignals.entries()) {
        child.kill(signal);
        const isLast = index === program.stopSignals.length - 1;
        const wait = sleep(isLast ? FORCE_AFTER_MS : NEXT_SIGNAL_AFTER_MS, false, { ref: false });
        if (await Promise.race([over.then(() => true), wait])) return;
      }
      endGroup(child);
      await over;
    },
    async kill() {
      if (!current) return;
      const { child, over } = current;
      endGroup(child);
      await over;
    },
  };
}

function spawnProgram({ command, args, environment, user, workFolder, logFile, serves }: Program) {
  mkdirSync(dirname(logFile), { recursive: true });
  const log = openSync(logFile, 'a', 0o600);
  try {
    return spawn(command, args, {
      cwd: workFolder,
      env: environment,
      detached: true,
      stdio: ['ignore', log, log, ...(serves === 'message' ? (['ipc'] as const) : [])],
      ...(user ? { uid: user.uid, gid: user.gid } : {}),
    });
  } finally {
    closeSync(log);
  }
}

/** Resolves to how the process ended, or why it could not be started. */
const endOf = (child: ChildProcess) =>
  new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
  });

/** Resolves to null when the process is ready, or to the reason why it is considered failed. */
async function waitUntilReady({ serves }: Program, child: ChildProcess): Promise<string | null> {
  const timeout = `not ready within ${READY.within / 1000} s`;
  if (serves === 'message') {
    const message = once(child, 'message').then(() => null);
    return Promise.race([message, sleep(READY.within, timeout, { ref: false })]);
  }
  const { pid } = child;
  if (pid === undefined) return timeout;
  const ended = new AbortController();
  child.once('exit', () => ended.abort());
  const isReady = await pollUntil(async () => serves(pid), { ...READY, signal: ended.signal });
  return isReady ? null : timeout;
}

function endGroup({ pid }: ChildProcess): void {
  if (pid !== undefined) sendSignal(-pid, 'SIGKILL');
}

function lastLine(logFile: string): string {
  const line = readFileSync(logFile, 'utf8').trimEnd().split('\n').at(-1);
  return `${line ? `: ${line}` : ''} (see ${logFile})`;
}
