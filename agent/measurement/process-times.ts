import { readFileSync } from 'node:fs';

/** Times of a process in seconds (proc(5), /proc/pid/stat). */
export interface ProcessTimes {
  parent: number;
  /** Distinguishes it from a later process with the same id. */
  startedAt: number;
  cpu: number;
  /** CPU of children that ended and were waited for, including their own such children. */
  childrenCpu: number;
}

/** USER_HZ, which is 100 on every architecture that Node supports on Linux. */
const TICKS_PER_SECOND = 100;

/** Null when the process is gone. Reads synchronously, because the kernel serves the file from memory. */
export function readProcessTimes(pid: number): ProcessTimes | null {
  try {
    return parseProcessTimes(readFileSync(`/proc/${pid}/stat`, 'latin1'));
  } catch {
    return null;
  }
}

/** The second field is the program's name in brackets, which may itself hold spaces and brackets. */
export function parseProcessTimes(stat: string): ProcessTimes {
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  // Numbered as in proc(5), which counts from 1 and includes the two fields before.
  const field = (number: number) => Number(fields[number - 3]);
  return {
    parent: field(4),
    cpu: (field(14) + field(15)) / TICKS_PER_SECOND,
    childrenCpu: (field(16) + field(17)) / TICKS_PER_SECOND,
    startedAt: field(22),
  };
}
