import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { sendSignal } from '../processes/send-signal.ts';
import type { Environment } from './settings.ts';

/**
 * Every process of a stack carries these variables, and what it starts inherits them. So the processes of a
 * stack whose own process was killed can be told from all others for certain, whatever became of their parents.
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

/** Live processes of the stack of this DEV_DIR, except those of other users that can't be looked at. */
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

const ORDERLY_MS = 10_000;

/** Ends them, by force when they take too long. @returns how many there were */
export async function endLeftovers(devDir: string): Promise<number> {
  const leftovers = stackProcesses(devDir);
  for (const { pid, stopSignal } of leftovers) sendSignal(pid, stopSignal);
  const deadline = Date.now() + ORDERLY_MS;
  while (stackProcesses(devDir).length > 0) {
    if (Date.now() > deadline) for (const { pid } of stackProcesses(devDir)) sendSignal(pid, 'SIGKILL');
    await sleep(50);
  }
  return leftovers.length;
}
