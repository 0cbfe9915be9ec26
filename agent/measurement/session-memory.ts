import { readFile } from 'node:fs/promises';

/** The kernel walks the memory of each process, which takes milliseconds with large shared buffers. */
const READ_WITHIN_MS = 2_000;
/** Errors of a process that has ended. */
const ENDED = new Set(['ENOENT', 'ESRCH']);

/**
 * Private memory of sessions in bytes, by database: the proportional set size (PSS) of their anonymous pages. Shared
 * buffers and program code, which all sessions share, are not included. A database is missing when the host does not
 * allow to read `/proc/<pid>/smaps_rollup`, or when reading all of them takes too long.
 * @param sessions process ids by database
 */
export async function readSessionMemory(
  sessions: ReadonlyMap<string, readonly number[]>,
  read: (pid: number) => Promise<string> = readRollup,
): Promise<Map<string, number>> {
  const deadline = performance.now() + READ_WITHIN_MS;
  const memory = new Map<string, number>();
  for (const [database, pids] of sessions) {
    let sum: number | null = 0;
    for (const pid of pids) {
      const bytes: number | null = performance.now() < deadline ? await memoryOf(pid, read) : null;
      sum = sum === null || bytes === null ? null : sum + bytes;
    }
    if (sum !== null) memory.set(database, sum);
  }
  return memory;
}

const readRollup = (pid: number) => readFile(`/proc/${pid}/smaps_rollup`, 'latin1');

/** Null when it may not be read; 0 when the process has ended. */
async function memoryOf(pid: number, read: (pid: number) => Promise<string>): Promise<number | null> {
  try {
    const kilobytes = /^Pss_Anon:\s+(\d+) kB$/m.exec(await read(pid))?.[1];
    return kilobytes === undefined ? null : Number(kilobytes) * 1024;
  } catch (error) {
    return error instanceof Error && 'code' in error && ENDED.has(String(error.code)) ? 0 : null;
  }
}
