import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, mkdirSync, openSync, readFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Refusal } from '../stack/refusal.ts';
import type { Environment } from '../stack/settings.ts';
import type { OsUser } from './os-user.ts';
import { sendSignal } from './send-signal.ts';

export interface Program {
  name: string;
  command: string;
  args: readonly string[];
  environment: Environment;
  user?: OsUser;
  workFolder: string;
  logFile: string;
  /** Sent one after the other until it ends; SIGKILL follows. */
  stopSignals: readonly [NodeJS.Signals, ...NodeJS.Signals[]];
  /** Whether it serves; `message`: the process says so itself, by any message to its parent. */
  serves: 'message' | ((pid: number) => boolean | Promise<boolean>);
  /** For a program that starts processes outside of its group: resolves once none is left after its end. */
  untilAllEnded?: () => Promise<void>;
}

export interface Part {
  readonly name: string;
  /** Process id, which is its process group's too; null while it does not run. */
  readonly pid: number | null;
  /** @throws Refusal when it ends, or a time limit does, before it serves */
  start(): Promise<void>;
  /** In order, then by force; nothing is left of it afterwards. */
  stop(): Promise<void>;
  /** SIGKILL for it and what it has started, as if it had crashed. */
  kill(): Promise<void>;
}

const SERVES_WITHIN_MS = 30_000;
const POLL_MS = 20;
const NEXT_SIGNAL_AFTER_MS = 1_000;
const FORCE_AFTER_MS = 10_000;
const PAUSE_MS = { first: 100, longest: 5_000 };
/** A process that lived this long is started again at once when it ends. */
const STEADY_AFTER_MS = 10_000;

/**
 * Runs a program as the leader of a process group of its own: a Ctrl-C in the terminal does not reach it, so
 * that the stack stops its parts in their order, and what it leaves behind can be ended as a group.
 * @param options.restarts whether it is started again when it ends by itself
 * @param options.report told of each end that nobody asked for
 * @param options.onChange told when the process id has changed
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
    const serving = Promise.race([ended, untilItServes(program, child)]).then(async (failure) => {
      if (failure === null) {
        void ended.then((why) => {
          if (wanted && options.restarts) return revive(why, Date.now() - startedAt, over);
        });
        return;
      }
      endGroup(child);
      await over;
      throw new Refusal(`${program.name} did not start: ${failure}${lastWords(program.logFile)}`);
    });
    current = { child, serving, over };
    options.onChange();
    return serving;
  }

  async function revive(why: string, lived: number, over: Promise<void>): Promise<void> {
    options.report(`${program.name} ended (${why}); starting it again`);
    await over;
    if (lived > STEADY_AFTER_MS) pause = PAUSE_MS.first;
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

/** Resolves to how the process ended, or why it could not be started at all. */
const endOf = (child: ChildProcess) =>
  new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
  });

/** Null once the process serves, otherwise why it is taken not to. */
async function untilItServes({ serves }: Program, child: ChildProcess): Promise<string | null> {
  const tooLate = `not ready within ${SERVES_WITHIN_MS / 1000} s`;
  if (serves === 'message') {
    const said = once(child, 'message').then(() => null);
    return Promise.race([said, sleep(SERVES_WITHIN_MS, tooLate, { ref: false })]);
  }
  const deadline = Date.now() + SERVES_WITHIN_MS;
  while (
    Date.now() < deadline &&
    child.pid !== undefined &&
    child.exitCode === null &&
    child.signalCode === null
  ) {
    if (await serves(child.pid)) return null;
    await sleep(POLL_MS);
  }
  return tooLate;
}

function endGroup({ pid }: ChildProcess): void {
  if (pid !== undefined) sendSignal(-pid, 'SIGKILL');
}

function lastWords(logFile: string): string {
  const line = readFileSync(logFile, 'utf8').trimEnd().split('\n').at(-1);
  return `${line ? `: ${line}` : ''} (see ${logFile})`;
}
