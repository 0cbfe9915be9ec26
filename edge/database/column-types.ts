import { integer, text } from 'drizzle-orm/sqlite-core';
import type { BranchBlock } from '../../shared/block.ts';
import type { Life } from '../../shared/branch/lifespan.ts';
import type { BranchRole } from '../../shared/branch/login.ts';
import { BRANCH_DATA, type BranchData } from '../../shared/masking.ts';
import type { Moment } from '../../shared/moment.ts';
import type { JobKind } from '../../shared/project/job.ts';
import type { AppliedChange, ChangeStep, MainChange } from '../../shared/protocol/change-operations.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import type { RuleVia } from '../../shared/rule-via.ts';

export const ROLES = ['owner', 'admin', 'operator', 'viewer'] as const;

export type Role = (typeof ROLES)[number];

/** What a user may do in a project that is shared with them, within their own role. */
export const SHARED_ROLES = ['operator', 'viewer'] as const;

export type SharedRole = (typeof SHARED_ROLES)[number];

/** A time-based code of an app, or a code by e-mail (specification 5.6). */
export const SECOND_FACTOR_METHODS = ['totp', 'email'] as const;

export type SecondFactorMethod = (typeof SECOND_FACTOR_METHODS)[number];

/** A block as the branch's record stores it. */
export type StoredBlock = Omit<BranchBlock, 'branch_id'>;

/** Why the gateway restricts an active branch: nobody can connect, or nobody can write. */
export const BRANCH_HOLDS = ['import', 'following'] as const;
export type BranchHold = (typeof BRANCH_HOLDS)[number];

/** The other side of a comparison: another branch, a snapshot, or the branch itself `at` a time. */
export interface Comparison {
  against: { branchId: string } | { snapshotId: string } | { at: Moment };
  rows: boolean;
  schema: boolean;
}

/** What statements were tried on, and as which login. Their text is stored nowhere. */
export interface Tried {
  role: BranchRole;
  source: {
    kind: 'branch' | 'snapshot';
    id: string;
    name: string | null;
    data: BranchData;
    /** Of a snapshot. */
    taken_at: string | null;
  };
}

/** What a database has of the one that it comes from. */
export interface BranchContent {
  data: BranchData;
  keepTables: string[];
  maskingVersion: number | null;
  checkedAt: Date | null;
}

/** The snapshot with other data, or of another time, that a job clones. */
export interface PreparedSource {
  snapshotId: string;
  /** The job that makes it; null: it is there, and the policy is only compared with the branch. */
  madeBy: string | null;
  branchId: string;
  data: BranchData;
  /** Of the policy; null for `none`. */
  version: number | null;
  keepTables: string[];
  /** The branch at an earlier time, in a snapshot of its own, unless the data is `full`. Left out: as it is now. */
  recovery?: { at: Moment; snapshotId: string; bisectionId?: string };
}

/** What a project follows: `stopped` continues after `resume`, the others from `cut_over` on are over. */
export const FOLLOW_RECORD_STATES = ['copying', 'following', 'stopped', 'cut_over', 'failed'] as const;

export interface FollowedSource {
  host: string;
  port: number;
  database: string;
  /** Of PostgreSQL. */
  version: string;
}

/** Why replication has stopped or failed, or will stop. */
export interface RecordedProblem {
  code: string;
  message: string;
  table: string | null;
  statement: string | null;
}

/** What a job of each kind is about, apart from its project. */
export interface JobSubjects {
  'project.create': OneBranch;
  /** A batch has `branchIds` instead of one branch. */
  'branch.create': { branchId: string | null; branchIds?: string[] } & Prepared;
  /** With a snapshot, the database is kept as that. */
  'branch.delete': OneBranch & { snapshotId?: string };
  'branch.reset': OneBranch & {
    /** What the branch held before. */
    snapshotId: string;
    /** The database that is cloned. */
    source: string;
    /** What that has; left out by earlier releases: everything. */
    content?: Omit<BranchContent, 'checkedAt'> & { checkedAt: number | null };
    prepared?: PreparedSource;
    /** The new life of the branch; left out: as before. */
    life?: Life;
    /** The response has the form of a creation. */
    asCreation?: boolean;
    /** The target of an undo, and the number of the checkpoint that the branch is at then. */
    undo?: Checkpoint & { position: number | null };
  };
  'branch.restore': OneBranch & OneSnapshot;
  /** With the names before, which nobody else can take meanwhile. */
  'branch.rename': OneBranch & { former: { name: string; database: string } };
  /** With the snapshot that is recovered, if it compares with an earlier time. */
  'branch.diff': OneBranch & { comparison: Comparison; prepared?: PreparedSource };
  /** Its id is that of the trial on the host. */
  'branch.try': OneBranch & { tried: Tried };
  'change.rehearse': OneBranch & OneChange & Prepared;
  'change.apply': OneBranch & OneSnapshot & OneChange;
  'change.undo': JobSubjects['branch.reset'] & OneChange;
  'branch.import': OneBranch & OneSnapshot & Copied;
  'follow.start': OneBranch &
    OneSnapshot &
    Copied & {
      /** One that exists at the source; null: the host makes it. */
      publication: string | null;
      /** A start that is undone after the exchange resets `main` to the empty state by these. */
      emptying: { jobId: string; snapshotId: string };
    };
  'follow.cutover': OneBranch & { writesStopped: boolean };
  'follow.stop': OneBranch;
  'snapshot.create': OneBranch &
    OneSnapshot & {
      /** By schedule: the snapshot before, which makes this one unnecessary if nothing has changed. */
      unlessSameAs?: string;
      /** The version of the masking policy; left out: the values stay. */
      maskingVersion?: number;
    };
  'snapshot.delete': OneSnapshot & { branchId: null };
  'project.delete': { branchId: null };
  'project.move': {
    branchId: null;
    /** Those that arrive. */
    branchIds: string[];
    /** The other host; the job's own is the one that the project leaves. */
    toHostId: string;
    /** Branches that are deleted, because they were left out. */
    leftOut: string[];
    dropsSnapshots: boolean;
  };
}

/** States of a change of `main` (`edge/changes/states.ts`). */
export const CHANGE_STATES = [
  'planned',
  'rehearsed',
  'approved',
  'scheduled',
  'applying',
  'stopped',
  'failed',
  'applied',
  'applied_with_differences',
  'undoing',
  'undone',
  'closed',
] as const;
export type ChangeState = (typeof CHANGE_STATES)[number];

/** Steps of a change, and the schema of `main` that they begin with. */
export interface ChangePlan {
  steps: ChangeStep[];
  schema: string;
  /** Differences between the branch and `main` that no statement expresses. */
  notModelled: string[];
  /** `gone`: nobody knows what `main` was like when the branch was made. Null: the statements were given. */
  base: 'kept' | 'gone' | null;
  /** Changes of `main` since. */
  mainChanges: MainChange[];
}

/** Effects of the steps on a clone of `main`. */
export type StoredRehearsal = Omit<MethodResult<'change.rehearse'>, 'schema_before'> & {
  data: BranchData;
  /** ISO 8601. */
  at: string;
};

/** An approval counts for the plan with this digest. */
export interface ChangeApproval {
  user_id: string;
  email: string;
  digest: string;
  /** ISO 8601. */
  at: string;
}

export interface ApplyOptions {
  lock_timeout_ms: number;
  attempts: number;
  budget_ms: number;
  accept_outage: boolean;
}

/** How an application ended. `not_allowed`: a scheduled one could not begin. */
export type StoredApplication = Pick<AppliedChange, 'error' | 'steps'> & {
  reason: AppliedChange['reason'] | 'not_allowed';
  /** ISO 8601. */
  at: string;
};

/** How far a move is. From `moved` on the project is on the other host. */
export const MOVE_PHASES = ['building', 'fenced', 'moved', 'undone'] as const;
export type MovePhase = (typeof MOVE_PHASES)[number];

/** A branch that moves. The IDs are those of its calls of the other host. */
export interface MovingBranch {
  id: string;
  name: string;
  database: string;
  /** On the host that it leaves. */
  bytes: number;
  /** `built`: it is empty. `loaded`: the copy is made. `copied`: it is in place. */
  state: 'waiting' | 'built' | 'loaded' | 'copied';
  /** It can only be read until the project has moved. */
  frozen: boolean;
  /** The revision of the access whose passwords its logins on the other host have; null before it is built. */
  revision: number | null;
  buildId: string;
  snapshotId: string;
}

/** What is copied from a database elsewhere. */
interface Copied {
  /** Of the source, without the login. */
  source: { host: string; port: number; database: string };
  /** As SQL names them; null: all. */
  tables: string[] | null;
  /** What of the source is left alone, in the words of the request. */
  leftAlone?: { schemas?: string[]; exclude_schemas?: string[]; exclude_tables?: string[] };
  /** What the storage quota had left. */
  roomBytes: number;
  /** Tables that are copied concurrently. */
  jobs: number;
}

/** A checkpoint as the API shows it. */
export interface Checkpoint {
  checkpoint_id: string;
  label: string | null;
  /** ISO 8601. */
  taken_at: string;
  /** From 1 in its branch; null for what the branch held after its last checkpoint. */
  number: number | null;
}

interface Prepared {
  /** Left out: the source is cloned as it is. */
  prepared?: PreparedSource;
}

interface OneBranch {
  branchId: string;
}

interface OneChange {
  changeId: string;
}

interface OneSnapshot {
  snapshotId: string;
}

/** The `input` of a job of this kind, or of any. */
export type JobInput<K extends JobKind = JobKind> = {
  [P in K]: { actor: AuditActor } & Omit<JobSubjects[P], 'branchId'>;
}[K];

/** A rule of a deleted branch, without its id. */
export interface KeptRule {
  cidr: string;
  description: string | null;
  source: 'manual' | 'creator_ip';
  /** Rules kept by an earlier release have none, and open everything. */
  via?: RuleVia;
}

/** What a key may do beyond its role. `data.full`: see unmasked data where a project has masked data only. */
export const KEY_PERMISSIONS = ['data.full'] as const;
export type KeyPermission = (typeof KEY_PERMISSIONS)[number];

/** A caller that is no person: an API key, a workload whose ID token a trust accepted, or a client that a person signed in. */
export interface Machine {
  type: 'key' | 'workload' | 'grant';
  /** ID of the key, of the trust or of the grant. */
  id: string;
}

/** The author and the origin of a request, as recorded in audit events. */
export interface Actor {
  /** The user, or the user in whose name a machine acts. Records name it as `created_by`. */
  userId: string;
  /** The author of the audit event, if it is not the user. */
  machine?: Machine;
  email: string;
  tenantId: string;
  ip: string | null;
  userAgent: string | null;
  requestId: string;
  /** The trace of the request, which a job continues. */
  traceparent?: string;
}

/** The actor of an audit event; actions of the service itself have only a tenant. */
export type AuditActor = Pick<Actor, 'tenantId'> & {
  [F in Exclude<keyof Actor, 'tenantId' | 'machine' | 'traceparent'>]: Actor[F] | null;
} & Pick<Actor, 'machine' | 'traceparent'>;

/** Unix milliseconds. */
export const timestamp = (name: string) => integer(name, { mode: 'timestamp_ms' });
export const created = () => timestamp('created_at').notNull();
export const updated = () => timestamp('updated_at').notNull();

/** What a database has of the one that it comes from. */
export const branchContent = () => ({
  data: text('data', { enum: BRANCH_DATA }).notNull().default('full'),
  /** The tables whose rows stayed, of `none`. */
  keepTables: text('keep_tables', { mode: 'json' }).$type<string[]>().notNull().default([]),
  /** The version of the masking policy by which values were replaced; null: they are as in the source. */
  maskingVersion: integer('masking_version'),
  /** When the host had compared the values with the source; null: they are the same, or it is being made. */
  checkedAt: timestamp('checked_at'),
});

/** Types of events. `edge/events/event-types.ts` describes each, and a trigger writes it. */
export const EVENT_TYPES = [
  'project.changed',
  'branch.changed',
  'network_rule.changed',
  'snapshot.changed',
  'job.changed',
  'storage.changed',
  'follow.changed',
  'change.changed',
  'project.failed_over',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

/**
 * A primary serves projects, and is `closing` during a planned switchover. A `fenced` host is a former primary, whose data may
 * have what no other host has (`edge/failover/states.ts`).
 */
export const HOST_ROLES = ['primary', 'closing', 'standby', 'fenced'] as const;
export type HostRole = (typeof HOST_ROLES)[number];
