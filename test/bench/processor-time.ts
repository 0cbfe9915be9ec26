import { readdirSync, readFileSync } from 'node:fs';
import { readProcessTimes } from '../../agent/measurement/server-sample.ts';

/** Milliseconds of processor time of the process and its children, those that have ended included. */
export function processorMs(pid: number): number {
  const ofThread = (thread: string) => {
    const folder = `/proc/${pid}/task/${thread}`;
    const [nanoseconds] = readFileSync(`${folder}/schedstat`, 'latin1').split(' ');
    const children = readFileSync(`${folder}/children`, 'latin1').split(' ').filter(Boolean);
    return children.reduce((sum, child) => sum + processorMs(Number(child)), Number(nanoseconds) / 1e6);
  };
  try {
    const ended = (readProcessTimes(pid)?.childrenCpu ?? 0) * 1000;
    return readdirSync(`/proc/${pid}/task`).reduce((sum, thread) => sum + ofThread(thread), ended);
  } catch {
    // It has ended.
    return 0;
  }
}
