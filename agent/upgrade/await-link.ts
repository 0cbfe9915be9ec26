import { setTimeout as sleep } from 'node:timers/promises';
import { isRunning, readRunRecord } from './trial.ts';

const POLL_MS = 50;

export type Outcome = 'linked' | 'fell_back' | 'silent';

interface Expected {
  stateDir: string;
  /** The hash of the program that is to link. */
  sha256: string;
  /** Time for the agent that runs to end: it waits for clones. */
  endWithin: number;
  /** For the new one to link or to give up. */
  linkWithin: number;
}

/** The process id of the agent, or null if none runs. */
export function runningAgent(stateDir: string): number | null {
  const record = readRunRecord(stateDir);
  return record && isRunning(stateDir, record) ? record.pid : null;
}

/**
 * Asks the agent that runs to end when no clone is in progress; its service manager then starts the installed
 * program.
 * @returns its process id, or null if none runs
 */
export function askToEnd(stateDir: string): number | null {
  const pid = runningAgent(stateDir);
  if (pid === null) return null;
  try {
    process.kill(pid, 'SIGUSR2');
  } catch (error) {
    // It has ended just now, so its service manager starts the installed program.
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error;
  }
  return pid;
}

/** Waits until another process than `ending` has linked with the program, or runs another program. */
export async function awaitLink(ending: number, expected: Expected): Promise<Outcome> {
  const { stateDir, sha256, endWithin, linkWithin } = expected;
  const present = () => {
    const record = readRunRecord(stateDir);
    return record && isRunning(stateDir, record) ? record : null;
  };
  for (const deadline = Date.now() + endWithin; present()?.pid === ending; await sleep(POLL_MS))
    if (Date.now() > deadline) return 'silent';
  for (const deadline = Date.now() + linkWithin; Date.now() < deadline; await sleep(POLL_MS)) {
    const record = present();
    if (!record || record.pid === ending) continue;
    if (record.sha256 !== sha256) return 'fell_back';
    if (record.linked) return 'linked';
  }
  return 'silent';
}
