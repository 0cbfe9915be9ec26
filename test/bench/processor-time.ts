import { readdirSync, readFileSync } from 'node:fs';
import { readProcessTimes } from '../../agent/measurement/server-sample.ts';

const threadsOf = (pid: number) =>
  readdirSync(`/proc/${pid}/task`).map((thread) => `/proc/${pid}/task/${thread}`);

const childrenOf = (thread: string) =>
  readFileSync(`${thread}/children`, 'latin1').split(' ').filter(Boolean).map(Number);

/** Milliseconds of processor time of the process and its children, those that have ended included. */
export function processorMs(pid: number): number {
  const ofThread = (thread: string) => {
    const [nanoseconds] = readFileSync(`${thread}/schedstat`, 'latin1').split(' ');
    return childrenOf(thread).reduce((sum, child) => sum + processorMs(child), Number(nanoseconds) / 1e6);
  };
  try {
    const ended = (readProcessTimes(pid)?.childrenCpu ?? 0) * 1000;
    return threadsOf(pid).reduce((sum, thread) => sum + ofThread(thread), ended);
  } catch {
    // It has ended.
    return 0;
  }
}

/** The process and its children. */
export function processesOf(pid: number): number[] {
  try {
    return [pid, ...threadsOf(pid).flatMap(childrenOf).flatMap(processesOf)];
  } catch {
    // It has ended.
    return [];
  }
}
