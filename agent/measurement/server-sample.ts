import type { Session } from '../postgres/connect.ts';
import type { ProcessSample, SeenProcess } from './cpu-account.ts';
import { readProcessTimes } from './process-times.ts';

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
