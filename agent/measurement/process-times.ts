import { readFileSync } from 'node:fs';

/** What the kernel says of a process (proc(5), /proc/pid/stat). Times are in seconds. */
export interface ProcessTimes {
  parent: number;
  /** Tells it from another process that gets the same number later. */
  startedAt: number;
  cpu: number;
  /** CPU of children that ended and were waited for, with theirs. */
  childrenCpu: number;
}

/** USER_HZ, which Linux keeps at 100 for programs on every processor Node runs on. */
const TICKS_PER_SECOND = 100;

/** Null when there is no such process any more. The kernel answers from memory, sooner than another thread would. */
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
  // Numbered as in proc(5), which counts from 1 and has the two fields before.
  const field = (number: number) => Number(fields[number - 3]);
  return {
    parent: field(4),
    cpu: (field(14) + field(15)) / TICKS_PER_SECOND,
    childrenCpu: (field(16) + field(17)) / TICKS_PER_SECOND,
    startedAt: field(22),
  };
}
