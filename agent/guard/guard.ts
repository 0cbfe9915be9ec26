import type { BlockReason } from '../../shared/block.ts';

/** Why a watchdog blocks a branch. */
export type GuardReason = Exclude<BlockReason, 'attempts'>;

/** A branch whose sessions the watchdogs see. */
export interface GuardedBranch {
  branch_id: string;
  project_id: string;
  database: string;
}

/** A session of a tenant's login, direct or of the pooler. The agent's own sessions are none. */
export interface TenantSession {
  pid: number;
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
  isActive: boolean;
  locks: number;
}

/** PostgreSQL at one instant. */
export interface Observation {
  /** Milliseconds of a monotonic clock. */
  at: number;
  sessions: TenantSession[];
  /** The transaction id that the next transaction gets, counted without wraparound. */
  nextId: number;
  /** Share of the queue of NOTIFY that is in use, from 0 to 1. */
  notificationShare: number;
}

/** What a tenant takes too much of. */
export interface Finding {
  /** Ended immediately. */
  sessions: readonly TenantSession[];
  /** Accept no connection for a while; their sessions are ended too. */
  branches: readonly GuardedBranch[];
  /** For the log. */
  detail: Record<string, unknown>;
}

/** One kind of thing that a tenant can take from others. */
export interface Guard {
  name: string;
  /** Why a branch is blocked. */
  reason: GuardReason;
  /** Called about four times a second, never concurrently. */
  check: (server: Observation) => Finding[] | Promise<Finding[]>;
}

/** The sessions of each branch. */
export function byBranch(sessions: readonly TenantSession[]): Map<GuardedBranch, TenantSession[]> {
  return Map.groupBy(
    sessions.filter(
      (session): session is TenantSession & { branch: GuardedBranch } => session.branch !== null,
    ),
    ({ branch }) => branch,
  );
}
