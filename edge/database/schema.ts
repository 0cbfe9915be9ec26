import { sql } from 'drizzle-orm';
import {
  type AnySQLiteColumn,
  check,
  index,
  integer,
  primaryKey,
  real,
  sqliteTable,
  text,
  uniqueIndex,
} from 'drizzle-orm/sqlite-core';
import { ACTOR_TYPES } from '../../shared/actor-types.ts';
import { BRANCH_STATUSES } from '../../shared/branch/branch-status.ts';
import { DEFAULT_CONNECTION_ATTEMPTS } from '../../shared/branch/connection-attempts.ts';
import type { DatabaseSettings } from '../../shared/branch/database-settings.ts';
import type { Labels } from '../../shared/branch/labels.ts';
import { RECORDED_LIFESPANS } from '../../shared/branch/lifespan.ts';
import { BRANCH_ROLES } from '../../shared/branch/login.ts';
import { KEPT_KINDS, type SnapshotSchedule } from '../../shared/branch/snapshot.ts';
import {
  JOB_KINDS,
  JOB_STATUSES,
  type JobError,
  type JobKind,
  type JobStep,
} from '../../shared/project/job.ts';
import { DEFAULT_BRANCH_LIMIT, PROJECT_STATUSES } from '../../shared/project/project-status.ts';
import {
  DEFAULT_STORAGE_QUOTA_GIB,
  SELF_SERVICE_QUOTA_CAP_GIB,
  STORAGE_STATES,
} from '../../shared/project/storage-quota.ts';
import { DURABILITIES, SYNC_STATES } from '../../shared/protocol/durability.ts';
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { RULE_VIAS } from '../../shared/rule-via.ts';
import {
  BRANCH_HOLDS,
  branchContent,
  created,
  HOST_ROLES,
  type JobInput,
  type JobSubjects,
  type KeptRule,
  type StoredBlock,
  timestamp,
  updated,
} from './column-types.ts';

/**
 * The system of record (D1); accounts are in `people-schema.ts`.
 * Timestamps are Unix milliseconds and ids are UUIDs. `docs/storage.md` lists what is stored and for how
 * long. The unique indexes exclude statuses that free a name, so that deleted and failed records do not
 * reserve it.
 */

/**
 * Local copy of a provider's user, identified by issuer and `gid`, never by e-mail (specification 2.1, 5.9).
 */
export const users = sqliteTable(
  'users',
  {
    id: text('id').primaryKey(),
    issuer: text('issuer').notNull(),
    gid: text('gid').notNull(),
    email: text('email').notNull(),
    role: text('role').notNull(),
    tenantId: text('tenant_id').notNull(),
    /** Issue time of the newest token seen; only a newer token can move the user to another tenant. */
    tenantSeenAt: timestamp('tenant_seen_at').notNull(),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [uniqueIndex('users_identity').on(t.issuer, t.gid)],
);

export const organizations = sqliteTable('organizations', {
  id: text('id').primaryKey(),
  idpTenantId: text('idp_tenant_id').notNull().unique(),
  /** Null: not made by the platform operator, but by its first user. */
  name: text('name'),
  createdAt: created(),
});

export const organizationMembers = sqliteTable(
  'organization_members',
  {
    organizationId: text('organization_id')
      .notNull()
      .references(() => organizations.id, { onDelete: 'cascade' }),
    userId: text('user_id')
      .notNull()
      .references(() => users.id, { onDelete: 'cascade' }),
    role: text('role').notNull(),
    createdAt: created(),
  },
  (t) => [primaryKey({ columns: [t.organizationId, t.userId] })],
);

/** Caps of a tenant that the platform operator set; null: as in the settings. */
export const tenantCaps = sqliteTable('tenant_caps', {
  tenantId: text('tenant_id').primaryKey(),
  projectLimit: integer('project_limit'),
  storageQuotaLimitGib: real('storage_quota_limit_gib'),
  updatedAt: updated(),
});

/** A database host: enrolled once with a one-time token, then authenticated by its public key. */
export const hosts = sqliteTable(
  'hosts',
  {
    id: text('id').primaryKey(),
    name: text('name').notNull().unique(),
    /** Public name and ports, as in connection URLs. */
    dbHost: text('db_host').notNull(),
    directPort: integer('direct_port').notNull(),
    pooledPort: integer('pooled_port').notNull(),
    /** PEM certificates of the authority that signed the servers' certificate; null: a public authority. */
    caCertificate: text('ca_certificate'),
    /** Ed25519 public JWK (JSON); null until the host is enrolled. */
    publicKey: text('public_key'),
    /** SHA-256 of the one-time token, hexadecimal; the token itself is shown once and not stored. */
    enrolmentTokenHash: text('enrolment_token_hash').unique(),
    enrolmentExpiresAt: timestamp('enrolment_expires_at'),
    enrolledAt: timestamp('enrolled_at'),
    /** A draining host gets no new projects; its existing projects are not affected. */
    draining: integer('draining', { mode: 'boolean' }).notNull().default(false),
    /** Where it stands, as its operator calls it; null: a project that names a region is not placed here. */
    region: text('region'),
    /** The most projects that are placed here; null: as many as its disk has room for. */
    capacity: integer('capacity'),
    /** PostgreSQL's `system_identifier` of the first cluster seen; null before that. */
    systemIdentifier: text('system_identifier'),
    /** Which of a pair of hosts the host is. */
    role: text('role', { enum: HOST_ROLES }).notNull().default('primary'),
    /** The host that a standby follows, or that has replaced a fenced one; null: a primary. */
    standbyOf: text('standby_of'),
    /** Of the record of its role, whose changes it orders; 0: it never had a standby and is none. */
    generation: integer('generation').notNull().default(0),
    /** Of the record that its agent has applied last. */
    appliedGeneration: integer('applied_generation').notNull().default(0),
    /** When the switchover of a `closing` primary last sent a heartbeat; null: it is none. */
    yieldsSince: timestamp('yields_since'),
    /** Of a primary, as its agent last reported it. */
    sync: text('sync', { enum: SYNC_STATES }).notNull().default('off'),
    /** What the host reported at its last reconciliation; null before the first one. */
    freeBytes: integer('free_bytes'),
    description: text('description', { mode: 'json' }).$type<HostDescription>(),
    describedAt: timestamp('described_at'),
    createdAt: created(),
  },
  (t) => [
    check('hosts_role', sql`${t.role} IN ('primary', 'closing', 'standby', 'fenced')`),
    check('hosts_standby_of', sql`(${t.standbyOf} IS NOT NULL) = (${t.role} IN ('standby', 'fenced'))`),
  ],
);

/** The authority that issues certificates to hosts without a public one: one row, once a host needs it. */
export const hostAuthority = sqliteTable('host_authority', {
  id: text('id').primaryKey(),
  /** In PEM form. */
  certificate: text('certificate').notNull(),
  keyId: text('key_id').notNull(),
  /** The private key, a JWK sealed with AES-256-GCM. Associated data: `host_authority`, id, key id. */
  sealedKey: text('sealed_key').notNull(),
  createdAt: created(),
});

export const projects = sqliteTable(
  'projects',
  {
    id: text('id').primaryKey(),
    name: text('name').notNull(),
    appKey: text('app_key').notNull(),
    /** The app key that the request named, if it was in use by another tenant; otherwise null. */
    requestedAppKey: text('requested_app_key'),
    env: text('env').notNull(),
    status: text('status', { enum: PROJECT_STATUSES }).notNull(),
    /**
     * Upper bounds of the branch count and of the quota that users may choose; the platform operator can
     * raise them.
     */
    branchLimit: integer('branch_limit').notNull().default(DEFAULT_BRANCH_LIMIT),
    /** Null: as in the settings. */
    leasedBranchLimit: integer('leased_branch_limit'),
    storageQuotaCapGib: real('storage_quota_cap_gib').notNull().default(SELF_SERVICE_QUOTA_CAP_GIB),
    storageQuotaGib: real('storage_quota_gib').notNull().default(DEFAULT_STORAGE_QUOTA_GIB),
    /** From the last measurement: total size of the creating, active and expired branches, and the resulting state (specification 3.2). */
    storageUsedBytes: integer('storage_used_bytes').notNull().default(0),
    storageState: text('storage_state', { enum: STORAGE_STATES }).notNull().default('normal'),
    storageMeasuredAt: timestamp('storage_measured_at'),
    /** A minute, to each branch. */
    connectionAttempts: integer('connection_attempts').notNull().default(DEFAULT_CONNECTION_ATTEMPTS),
    /** Only owners and admins may see the data of `main`, and machines with the permission. */
    maskedOnly: integer('masked_only', { mode: 'boolean' }).notNull().default(false),
    /** Names of the extensions that its databases were created with. */
    extensions: text('extensions', { mode: 'json' }).$type<readonly string[]>().notNull().default([]),
    /** Approvals that a change of `main` needs. */
    changeApprovals: integer('change_approvals').notNull().default(0),
    /** Of each snapshot without a number of its own; null: automatic. */
    spares: integer('spares'),
    /** Null: off. */
    snapshotSchedule: text('snapshot_schedule', { mode: 'json' }).$type<SnapshotSchedule>(),
    /** When the next scheduled snapshot is due; null without a schedule. */
    snapshotDueAt: timestamp('snapshot_due_at'),
    /** When the host observed the blocks of the project's branches, by its clock; null before the first one. */
    blocksObservedAt: timestamp('blocks_observed_at'),
    hostId: text('host_id')
      .notNull()
      .references(() => hosts.id),
    /** Whether commits survive the loss of the host. */
    durability: text('durability', { enum: DURABILITIES }).notNull().default('async'),
    /** When the host was lost and a standby took its place, and until when what was committed has survived. */
    failedOverAt: timestamp('failed_over_at'),
    survivedUntil: timestamp('survived_until'),
    /** Its tenant has not been informed of the last failover. */
    owesNotice: integer('owes_notice', { mode: 'boolean' }).notNull().default(false),
    /**
     * The name that leads to the host by a DNS record, and the address that the record was last given; null: it has none, and
     * connection URLs show the address of the host.
     */
    dnsName: text('dns_name'),
    dnsTarget: text('dns_target'),
    /** The wanted revision of the access rules, and the one known to be in effect on both ports. */
    accessRevision: integer('access_revision').notNull().default(0),
    accessApplied: integer('access_applied').notNull().default(0),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [
    uniqueIndex('projects_app_key_env').on(t.appKey, t.env).where(sql`status <> 'failed'`),
    index('projects_by_tenant').on(t.tenantId, t.createdAt, t.id),
    index('projects_by_creator').on(t.createdBy),
    index('projects_by_host').on(t.hostId),
  ],
);

/** Specification 2.2. */
export const projectBranches = sqliteTable(
  'project_branches',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    parentBranchId: text('parent_branch_id').references((): AnySQLiteColumn => projectBranches.id, {
      onDelete: 'set null',
    }),
    branchName: text('branch_name').notNull(),
    databaseName: text('database_name').notNull(),
    sourceDatabase: text('source_database').notNull(),
    status: text('status', { enum: BRANCH_STATUSES }).notNull().default('active'),
    lifespan: text('lifespan', { enum: RECORDED_LIFESPANS }).notNull().default('7d'),
    expiresAt: timestamp('expires_at'),
    /** When an expired branch is deleted; null in any other status. */
    deletesAt: timestamp('deletes_at'),
    ttlSeconds: integer('ttl_seconds'),
    /** Null: the branch has no lease. It begins when the branch becomes active; null before that. */
    leaseSeconds: integer('lease_seconds'),
    leaseEndsAt: timestamp('lease_ends_at'),
    labels: text('labels', { mode: 'json' }).$type<Labels>().notNull().default({}),
    ...branchContent(),
    /** As in the project, unless the branch has a limit of its own. */
    connectionAttempts: integer('connection_attempts').notNull().default(DEFAULT_CONNECTION_ATTEMPTS),
    hasOwnAttempts: integer('has_own_attempts', { mode: 'boolean' }).notNull().default(false),
    /** Of its database. */
    settings: text('settings', { mode: 'json' }).$type<DatabaseSettings>().notNull().default({}),
    isDefault: integer('is_default', { mode: 'boolean' }).notNull().default(false),
    protected: integer('protected', { mode: 'boolean' }).notNull().default(false),
    /** The number of the checkpoint that it was undone to; null: no undo since its last checkpoint. */
    undoneTo: integer('undone_to'),
    /** Null: it can be used. */
    hold: text('hold', { enum: BRANCH_HOLDS }),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    tenantId: text('tenant_id').notNull(),
    /**
     * Connections that the host refuses, at most one entry of each reason; those whose end has passed count
     * no more.
     */
    blocks: text('blocks', { mode: 'json' }).$type<StoredBlock[]>().notNull().default([]),
    /** From the last measurement; null where the host cannot measure them. */
    ownBytes: integer('own_bytes'),
    sharedBytes: integer('shared_bytes'),
    deletedAt: timestamp('deleted_at'),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [
    uniqueIndex('branches_name')
      .on(t.projectId, t.branchName)
      .where(sql`status not in ('deleted', 'failed')`),
    uniqueIndex('branches_database').on(t.databaseName).where(sql`status not in ('deleted', 'failed')`),
    index('branches_by_project').on(t.projectId),
    // SQLite uses it only for queries with this very condition, `isLive`.
    index('branches_live').on(t.projectId, t.isDefault, t.createdAt).where(sql`status <> 'deleted'`),
    index('branches_live_name').on(t.projectId, t.branchName).where(sql`status <> 'deleted'`),
    // Without it, the deletion of a row looks for its children in all rows.
    index('branches_by_parent').on(t.parentBranchId),
  ],
);

/** Passwords, sealed with AES-256-GCM. Associated data: branch id, role, key id. */
export const branchCredentials = sqliteTable(
  'branch_credentials',
  {
    branchId: text('branch_id')
      .notNull()
      .references(() => projectBranches.id, { onDelete: 'cascade' }),
    role: text('role', { enum: BRANCH_ROLES }).notNull(),
    keyId: text('key_id').notNull(),
    sealedPassword: text('sealed_password').notNull(),
    /** The access revision of the project that set the password; 0 if it was set with the branch. */
    revision: integer('revision').notNull().default(0),
    updatedAt: updated(),
  },
  (t) => [primaryKey({ columns: [t.branchId, t.role] })],
);

export const networkRules = sqliteTable(
  'network_rules',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    branchId: text('branch_id').references(() => projectBranches.id, { onDelete: 'cascade' }),
    cidr: text('cidr').notNull(),
    description: text('description'),
    source: text('source', { enum: ['manual', 'creator_ip'] }).notNull(),
    via: text('via', { enum: RULE_VIAS }).notNull().default('all'),
    /**
     * The access revision of the project that added this rule; in effect once `access_applied` reaches it.
     */
    revision: integer('revision').notNull(),
    createdBy: text('created_by')
      .notNull()
      .references(() => users.id),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
    /** The rule is removed then; null: it stays. */
    expiresAt: timestamp('expires_at'),
    /** Of a rule whose `cidr` is a name: the version of its list that the access has; otherwise 0. */
    listVersion: integer('list_version').notNull().default(0),
  },
  (t) => [
    uniqueIndex('network_rules_project_once').on(t.projectId, t.cidr).where(sql`branch_id is null`),
    uniqueIndex('network_rules_branch_once').on(t.branchId, t.cidr).where(sql`branch_id is not null`),
    index('network_rules_by_project').on(t.projectId, t.createdAt, t.id),
  ],
);

/** The networks that rules can name, with the ranges that their owners publish. */
export const namedNetworks = sqliteTable('named_networks', {
  name: text('name').primaryKey(),
  /** Counts the lists that differed. 0: none was read yet. */
  version: integer('version').notNull(),
  /** In canonical form, as the list before. */
  ranges: text('ranges', { mode: 'json' }).$type<string[]>().notNull(),
  previous: text('previous', { mode: 'json' }).$type<string[]>().notNull(),
  changedAt: timestamp('changed_at').notNull(),
  /** When the source was last read. */
  checkedAt: timestamp('checked_at').notNull(),
  /** When it last could not be read for a new rule. */
  failedAt: timestamp('failed_at'),
});

/** Progress and outcome of long-running operations; rows outlive their project. */
export const jobs = sqliteTable(
  'jobs',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id').notNull(),
    branchId: text('branch_id'),
    kind: text('kind', { enum: JOB_KINDS }).notNull(),
    /** Never shown, contains no secrets. */
    input: text('input', { mode: 'json' }).$type<JobInput>().notNull(),
    status: text('status', { enum: JOB_STATUSES }).notNull(),
    steps: text('steps', { mode: 'json' }).$type<JobStep[]>().notNull(),
    /** Set while the job is still running if it is being rolled back. */
    error: text('error', { mode: 'json' }).$type<JobError>(),
    attempts: integer('attempts').notNull().default(0),
    hostId: text('host_id').notNull(),
    createdBy: text('created_by').notNull(),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
    updatedAt: updated(),
  },
  (t) => [
    index('jobs_by_project').on(t.projectId, t.createdAt, t.id),
    index('jobs_open').on(t.hostId).where(sql`status in ('queued', 'running')`),
    index('jobs_of_moves').on(t.hostId, t.updatedAt).where(sql`kind = 'project.move'`),
  ],
);

export const auditEvents = sqliteTable(
  'audit_events',
  {
    id: text('id').primaryKey(),
    name: text('name').notNull(),
    /** Null for an action of the service itself, or of a person who has not proven who they are. */
    actorType: text('actor_type', { enum: ACTOR_TYPES }),
    actorId: text('actor_id'),
    actorEmail: text('actor_email'),
    tenantId: text('tenant_id').notNull(),
    projectId: text('project_id'),
    branchId: text('branch_id'),
    ip: text('ip'),
    userAgent: text('user_agent'),
    requestId: text('request_id'),
    metadata: text('metadata', { mode: 'json' }).$type<Record<string, unknown>>().notNull(),
    createdAt: created(),
  },
  (t) => [
    index('audit_by_tenant').on(t.tenantId, t.createdAt, t.id),
    index('audit_by_project').on(t.projectId),
    index('audit_by_actor').on(t.actorId),
    // SQLite uses it only for queries with this very condition, `isDrill`.
    index('audit_drills').on(t.projectId, t.createdAt).where(sql`name = 'recovery.drilled'`),
  ],
);

export type JobRow = typeof jobs.$inferSelect;
export type JobOf<K extends JobKind> = Omit<JobRow, 'kind' | 'branchId' | 'input'> & {
  kind: K;
  branchId: JobSubjects[K]['branchId'];
  input: JobInput<K>;
};

export type ProjectRow = typeof projects.$inferSelect;

export type BranchRow = typeof projectBranches.$inferSelect;

export type NetworkRuleRow = typeof networkRules.$inferSelect;

export type UserRow = typeof users.$inferSelect;

/** Closed databases of a project: snapshots, and the databases of deleted branches. */
export const snapshots = sqliteTable(
  'snapshots',
  {
    id: text('id').primaryKey(),
    projectId: text('project_id')
      .notNull()
      .references(() => projects.id, { onDelete: 'cascade' }),
    /** The branch that it was taken of, with its name then; the branch may be deleted since. */
    branchId: text('branch_id').notNull(),
    branchName: text('branch_name').notNull(),
    name: text('name'),
    kind: text('kind', { enum: KEPT_KINDS }).notNull(),
    /** A checkpoint: from 1 in its branch. A safety snapshot: `undone_to` of the branch then. */
    number: integer('number'),
    /** `making`: its job is not done. */
    status: text('status', { enum: ['making', 'ready'] }).notNull(),
    independent: integer('independent', { mode: 'boolean' }).notNull().default(false),
    sizeBytes: integer('size_bytes').notNull().default(0),
    /** From the last measurement; null where the host cannot measure them. */
    ownBytes: integer('own_bytes'),
    sharedBytes: integer('shared_bytes'),
    /** Null: as the project. */
    spares: integer('spares'),
    ...branchContent(),
    /** The rules of a deleted branch. */
    rules: text('rules', { mode: 'json' }).$type<KeptRule[]>().notNull().default([]),
    takenAt: timestamp('taken_at').notNull(),
    /** Null: it is kept until it is deleted. */
    expiresAt: timestamp('expires_at'),
    tenantId: text('tenant_id').notNull(),
    createdAt: created(),
  },
  (t) => [
    index('snapshots_by_project').on(t.projectId, t.createdAt, t.id),
    index('snapshots_by_branch').on(t.branchId),
  ],
);

export type SnapshotRow = typeof snapshots.$inferSelect;

/** One row per used `Idempotency-Key`, with its job: a repeated request waits for the same job. */
export const idempotencyKeys = sqliteTable(
  'idempotency_keys',
  {
    tenantId: text('tenant_id').notNull(),
    userId: text('user_id').notNull(),
    path: text('path').notNull(),
    key: text('key').notNull(),
    bodyHash: text('body_hash').notNull(),
    jobId: text('job_id').notNull(),
    status: integer('status'),
    body: text('body', { mode: 'json' }).$type<Record<string, unknown>>(),
    expiresAt: timestamp('expires_at').notNull(),
  },
  (t) => [
    primaryKey({ columns: [t.tenantId, t.userId, t.path, t.key] }),
    uniqueIndex('idempotency_by_job').on(t.jobId),
    index('idempotency_by_expiry').on(t.expiresAt),
  ],
);
