import { z } from 'zod';
import { BRANCH_ROLES } from '../branch/login.ts';
import { HostDescription } from './host-description.ts';
import { Id, operation } from './operation.ts';

/**
 * What a host holds. The edge compares it with the records, group by group, and lists only the groups that
 * differ.
 */

export const HostedBranch = z.strictObject({
  project_id: Id,
  branch_id: Id,
  database: z.string(),
  /** `prepared`: logins and rules only; `building`: a clone without its final name; `ready`: finalized. */
  state: z.enum(['prepared', 'building', 'ready']),
  /** The job that made it, or reset it; null: the agent is of a release that does not report it. */
  made_by: Id.nullable(),
});

export const HostedProject = z.strictObject({
  project_id: Id,
  access_revision: z.int(),
  /** True: an agent of an earlier release made it, and the host does not know its tenant. */
  needs_tenant: z.literal(true).optional(),
});

export const HostedSnapshot = z.strictObject({
  project_id: Id,
  snapshot_id: Id,
  /** False while it is being taken, and if its database is missing. */
  ready: z.boolean(),
  /** It shares no block with the branch it was taken of. */
  independent: z.boolean(),
});

/** Identifier of the PostgreSQL cluster (`pg_control_system()`), as decimal digits. */
export const SystemIdentifier = z.string().min(1).max(20);
/** The volume with PostgreSQL's data. */
export const FreeBytes = z.int().nonnegative();

/** A login of a branch that had changed itself, and that the host has restored. */
const RestoredLogin = z.strictObject({
  /** The same whenever it is reported. */
  id: Id,
  branch_id: Id,
  role: z.enum(BRANCH_ROLES),
  /** Whether it had another password. */
  password: z.boolean(),
  /** Names of its settings that were removed. */
  settings: z.array(z.string().max(200)).max(100),
});

/** The projects whose ids have the same first byte. */
const Group = z.string().regex(/^[0-9a-f]{2}$/);
const GROUPS = 256;

/** Of one report. */
export const RESTORED_LOGINS_MAX = 100;

export const INVENTORY_OPERATIONS = {
  'inventory.digest': operation({
    summary: 'Describe the host, and report a count and a hash of what it holds of each group of projects',
    params: z.strictObject({}),
    result: z.strictObject({
      system_identifier: SystemIdentifier,
      free_bytes: FreeBytes,
      /** Null: a server of the host is away. */
      description: HostDescription.nullable(),
      /** The jobs of resets whose clones are not swapped in. */
      resets: z.array(Id).default([]),
      /** Of about the last hour; a login can be reported again. */
      restored_logins: z.array(RestoredLogin).max(RESTORED_LOGINS_MAX).default([]),
      /** Groups without anything are left out. */
      groups: z.record(Group, z.strictObject({ count: z.int().positive(), hash: z.string() })),
    }),
    deadline: 30_000,
  }),

  'inventory.list': operation({
    summary: 'List what the host holds of some groups of projects, a page at a time',
    params: z.strictObject({
      groups: z.array(Group).min(1).max(GROUPS),
      /** The last project of the previous page; `null`: from the beginning. */
      after: Id.nullable(),
    }),
    result: z.strictObject({
      projects: z.array(HostedProject),
      branches: z.array(HostedBranch),
      snapshots: z.array(HostedSnapshot),
      /** For the next page; `null`: this was the last. */
      next: Id.nullable(),
    }),
    deadline: 30_000,
  }),
} as const;
