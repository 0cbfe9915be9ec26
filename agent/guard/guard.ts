import type { BlockReason } from '../../shared/block.ts';
import type { DatabaseKind, GuardName, ProcessKind } from '../postgres/tenant-code.ts';
import type { Excess } from '../process/excesses.ts';

/** Why a watchdog blocks a branch. */
export type GuardReason = Exclude<BlockReason, 'attempts'>;

/** A branch whose processes the watchdogs see, or what an operation makes of one. */
export interface GuardedBranch {
  /** What its database is; a watchdog blocks only branches. */
  kind: DatabaseKind;
  /** Of an operation's database: the id in its name. */
  branch_id: string;
  project_id: string;
  /** The project's tenant; the project itself while it is not known. */
  tenant: string;
  database: string;
}

/**
 * A process that may run code of a tenant: a session of one of its logins, or a worker in its database. The agent's own
 * sessions are none.
 */
export interface TenantSession {
  pid: number;
  /** Null for one that `tenant-code.ts` does not have. Every watchdog looks at it. */
  kind: ProcessKind | null;
  /** Unique among all sessions, earlier ones included. */
  key: string;
  /** Null while the database is not known to be a branch's. */
  branch: GuardedBranch | null;
  /** Unix seconds. */
  begun: number;
  /** Age of its transaction in seconds; 0 without one. */
  transactionSeconds: number;
  /** Number of its transaction among those of its server process; null without one. */
  transaction: number | null;
  /**
   * Whether that transaction has a transaction id, and the newest id that it holds, subtransactions included.
   */
  hasId: boolean;
  newestId: number | null;
  /** Every id that it holds now, subtransactions included, in 32 bits. */
  ids: readonly number[];
  isActive: boolean;
  locks: number;
}

/** A worker of autovacuum in a tenant's database. */
export interface AutovacuumWorker extends Ended {
  /** Unix seconds. */
  begun: number;
  /** Age of its transaction in seconds; 0 without one. */
  transactionSeconds: number;
  /** Whether it analyses a table or summarises an index, which runs functions of the tenant. */
  isAnalysing: boolean;
  /** `asleep`: in a function of the tenant; `locked out`: it waits for a lock. */
  wait: 'asleep' | 'locked out' | null;
  /** Oids of the tables and indexes that it has locked for its work. */
  relations: readonly number[];
}

/** What identifies a process that is to be ended. */
export type Ended = Pick<TenantSession, 'pid' | 'key' | 'branch'>;

/** PostgreSQL at one instant. */
export interface Observation {
  /** Milliseconds of a monotonic clock. */
  at: number;
  sessions: TenantSession[];
  workers: AutovacuumWorker[];
  /** Connections that the server accepts, and those of them that are reserved for the agent. */
  connections: { max: number; reserved: number };
  /** How many workers of autovacuum the server has. */
  workersMax: number;
  /** Where the next members of multixacts were stored at the last checkpoint. */
  memberOffset: number;
  /** The transaction id that the next transaction gets, counted without wraparound. */
  nextId: number;
  /** Share of the queue of NOTIFY that is in use, from 0 to 1. */
  notificationShare: number;
}

/** What a tenant takes too much of. */
export interface Finding {
  /** Ended immediately. */
  sessions: readonly Ended[];
  /** Accept no connection for a while; their sessions are ended too. */
  branches: readonly GuardedBranch[];
  /** A branch of `sessions` that is not known yet is blocked as soon as it is. */
  blocksUnknown?: true;
  /** Whether what has started the sessions may start them again, which takes some seconds. */
  mayReturn?: true;
  /** For the log. */
  detail: Record<string, unknown>;
}

/** One kind of thing that a tenant can take from others. */
export interface Guard {
  name: GuardName;
  /** Why a branch is blocked. */
  reason: GuardReason;
  /** Why the processes of an operation end, if the reason has no word for it. */
  excess?: Excess;
  /** Called about four times a second, never concurrently. */
  check: (server: Observation) => Finding[] | Promise<Finding[]>;
}

export function byBranch(sessions: readonly TenantSession[]): Map<GuardedBranch, TenantSession[]> {
  return Map.groupBy(
    sessions.filter(
      (session): session is TenantSession & { branch: GuardedBranch } => session.branch !== null,
    ),
    ({ branch }) => branch,
  );
}
