import { readdirSync, readFileSync } from 'node:fs';
import { pollUntil } from '../../agent/process/loops.ts';
import { claimName } from '../../agent/upgrade/program-file.ts';
import { shortHash } from './host-folder.ts';
import { sendSignal } from './processes.ts';
import { type Environment, Refusal } from './settings.ts';

/**
 * Every process of a stack has these variables in its environment, and its children inherit them. They
 * identify the processes of a stack whose own process was killed, even when their parents are gone.
 */
const STACK = 'BRANCHGATE_DEV_STACK';
const STOP_SIGNAL = 'BRANCHGATE_DEV_STOP_SIGNAL';

export const marks = (devDir: string, stopSignal: NodeJS.Signals): Environment => ({
  [STACK]: devDir,
  [STOP_SIGNAL]: stopSignal,
});

interface Leftover {
  pid: number;
  stopSignal: NodeJS.Signals;
}

/** Live processes of the stack of this DEV_DIR, except those of other users that this user cannot inspect. */
export function stackProcesses(devDir: string): Leftover[] {
  const found: Leftover[] = [];
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue;
    const environment = environmentOf(entry);
    if (!environment.includes(`${STACK}=${devDir}`)) continue;
    const stopSignal = environment.find((variable) => variable.startsWith(`${STOP_SIGNAL}=`));
    found.push({ pid: Number(entry), stopSignal: stopSignal?.split('=')[1] as NodeJS.Signals });
  }
  return found;
}

function environmentOf(pid: string): string[] {
  try {
    return readFileSync(`/proc/${pid}/environ`, 'utf8').split('\0');
  } catch {
    return [];
  }
}

const ENDED = { within: 10_000, every: 50 };

/** Ends the processes of an earlier start, with SIGKILL after a while. @returns how many there were */
export async function endLeftovers(devDir: string): Promise<number> {
  const leftovers = stackProcesses(devDir);
  for (const { pid, stopSignal } of leftovers) sendSignal(pid, stopSignal);
  while (!(await pollUntil(async () => stackProcesses(devDir).length === 0, ENDED)))
    for (const { pid } of stackProcesses(devDir)) sendSignal(pid, 'SIGKILL');
  return leftovers.length;
}

/**
 * Locks DEV_DIR for this process.
 * @returns a function that releases the lock
 * @throws Refusal when another process holds the lock
 */
export async function lockDevFolder(devDir: string): Promise<() => Promise<void>> {
  const unlock = await claimName(`branchgate-dev-${shortHash(devDir)}`);
  if (!unlock)
    throw new Refusal(`a stack is already running in ${devDir}: stop it, or set DEV_DIR to another folder`);
  return unlock;
}
