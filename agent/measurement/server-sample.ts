import { readFileSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import type { Session } from '../postgres/connect.ts';
import type { ProcessSample, SeenProcess } from './cpu-account.ts';

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

/** PostgreSQL's activity at one instant. */
export interface ServerSample extends ProcessSample {
  /** Sessions over the network, by the database's oid. */
  direct: Map<string, number>;
  /** Oids of databases with an open transaction. */
  inTransaction: Set<string>;
  /** Process ids of sessions and their parallel workers, by the database's oid. */
  sessions: Map<string, number[]>;
  /** Milliseconds of the longest running statement, by the database's oid. */
  longest: Map<string, number>;
}

interface ActivityRow {
  pid: number;
  database: string | null;
  backend_type: string;
  over_network: boolean;
  in_transaction: boolean;
  active_ms: number;
  own: boolean;
}

/** Reads the function below `pg_stat_activity`, because the view joins names that are not needed here. */
const ACTIVITY = `
  SELECT pid, nullif(datid, 0)::text AS database, backend_type, client_addr IS NOT NULL AS over_network,
         xact_start IS NOT NULL AS in_transaction, pid = pg_backend_pid() AS own,
         CASE WHEN state = 'active'
           THEN greatest(0, extract(epoch FROM clock_timestamp() - query_start) * 1000) ELSE 0 END::float8 AS active_ms
  FROM pg_stat_get_activity(NULL)`;

const KINDS: Record<string, SeenProcess['kind']> = {
  'client backend': 'client',
  'parallel worker': 'parallel worker',
};

/** Samples all processes of the server, and the CPU time that each has used. */
export async function sampleServer(session: Session): Promise<ServerSample> {
  const { rows } = await session.query<ActivityRow>(ACTIVITY);
  const processes: SeenProcess[] = [];
  const direct = new Map<string, number>();
  const inTransaction = new Set<string>();
  const sessions = new Map<string, number[]>();
  const longest = new Map<string, number>();
  let postmasterPid = 0;
  for (const { pid, database, backend_type, over_network, in_transaction, active_ms, own } of rows) {
    const kind = KINDS[backend_type] ?? 'other';
    if (database !== null && kind === 'client' && over_network) {
      direct.set(database, (direct.get(database) ?? 0) + 1);
    }
    if (database !== null && in_transaction) inTransaction.add(database);
    if (database !== null && kind !== 'other' && !own) {
      sessions.set(database, [...(sessions.get(database) ?? []), pid]);
      longest.set(database, Math.max(longest.get(database) ?? 0, active_ms));
    }
    const times = readProcessTimes(pid);
    if (!times) continue;
    if (own) postmasterPid = times.parent;
    const key = `${pid} ${times.startedAt}`;
    processes.push({ key, database, kind, cpu: times.cpu, activeMs: own ? 0 : active_ms });
  }
  // Read last: a process that ended since the query is in this sum, or in the next one.
  const postmaster = readProcessTimes(postmasterPid);
  if (!postmaster)
    throw new Error("PostgreSQL's processes are not visible in /proc: mount it without hidepid");
  return {
    at: performance.now(),
    postmaster: `${postmasterPid} ${postmaster.startedAt}`,
    ended: postmaster.childrenCpu,
    processes,
    direct,
    inTransaction,
    sessions,
    longest,
  };
}

/** The kernel walks the memory of each process, which takes milliseconds with large shared buffers. */
const READ_WITHIN_MS = 2_000;
/** Errors of a process that has ended. */
const ENDED = new Set(['ENOENT', 'ESRCH']);

/**
 * Private memory of sessions in bytes, by database: the proportional set size (PSS) of their anonymous pages.
 * Shared buffers and program code, which all sessions share, are not included. A database is missing when the
 * host does not allow to read `/proc/<pid>/smaps_rollup`, or when reading all of them takes too long.
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
