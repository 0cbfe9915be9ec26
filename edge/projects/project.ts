import { z } from 'zod';
import { maxSlugLength } from '../../shared/branch/database-name.ts';
import { AUTOMATIC, SnapshotSchedule, Spares, SparesState } from '../../shared/branch/snapshot.ts';
import { Moment } from '../../shared/moment.ts';
import { PROJECT_STATUSES } from '../../shared/project/project-status.ts';
import { StorageStateField } from '../../shared/project/storage-quota.ts';
import { DURABILITIES, SYNC_STATES } from '../../shared/protocol/durability.ts';
import { Blocked, blockedOf, CreatedBranch } from '../branches/branch.ts';
import { Region } from '../hosts/enrolment.ts';
import type { ProjectView } from '../tenancy/project-access.ts';

export const Project = z
  .strictObject({
    id: z.uuid(),
    name: z.string().meta({ example: 'Web shop' }),
    app_key: z
      .string()
      .meta({ description: 'Part of every database name of the project.', example: 'web_shop' }),
    env: z.string().meta({ description: 'Environment; part of every database name.', example: 'prod' }),
    storage_quota_gib: z
      .number()
      .meta({ description: 'Storage quota of all branches together, in GiB.', example: 0.5 }),
    storage_used_bytes: z.int().meta({
      description:
        'Sizes of its creating, active and expired branches together, to the MiB; `usage` has the exact value.',
      example: 25_165_824,
    }),
    storage_state: StorageStateField,
    status: z.enum(PROJECT_STATUSES).meta({ example: 'active' }),
    branch_count: z.int().meta({
      description: 'Branches that count against the limit: creating, active and expired ones.',
      example: 2,
    }),
    leased_branch_count: z.int().meta({ description: 'How many of them have a lease.', example: 1 }),
    branch_limit: z.int().meta({
      description:
        'The most branches. The platform operator raises it, and may allow leased branches on top (`leased_branch_limit`).',
      example: 10,
    }),
    next_slot_at: z.iso.datetime().nullable().meta({
      description:
        'When the next of them is deleted by itself, at the end of a lease or of the retention of an expired branch. Null: none has such an end.',
      example: null,
    }),
    connection_attempts_per_minute: z.int().meta({
      description:
        'Connection attempts a minute that each branch accepts from its admitted networks together, unless it has a limit of its own.',
      example: 50,
    }),
    masked_only: z.boolean().meta({
      description:
        'Only owners, admins and API keys with the permission `data.full` get unmasked data. Everybody else gets branches with masked data, or without rows.',
      example: false,
    }),
    extensions: z.array(z.string()).meta({
      description:
        'Extensions that its databases were created with. Their owners can neither drop nor update them.',
      example: ['postgis'],
    }),
    change_approvals: z.int().meta({
      description: 'Approvals by other members that a change of `main` needs before it can be applied.',
      example: 0,
    }),
    max_slug_length: z
      .int()
      .meta({ description: 'Longest branch name whose database name fits into 63 characters.', example: 43 }),
    snapshot_schedule: SnapshotSchedule.nullable().meta({
      description: 'When snapshots of `main` are taken. Null: never by themselves.',
      example: null,
    }),
    spares: Spares,
    durability: z.enum(DURABILITIES).meta({
      description:
        'When a commit is confirmed: `async`: once the database host has it; `sync`: once the standby of that host has it on its disk too.',
      example: 'async',
    }),
    durability_state: z.enum(SYNC_STATES).meta({
      description:
        '`confirming`: the standby confirms each commit; `waiting`: the standby is away, and commits wait for it; `off`: commits are confirmed without it, because the durability is `async`, or no standby has caught up since its copy. Some seconds old.',
      example: 'off',
    }),
    host: z.string().meta({ description: 'Name of the database host.', example: 'eu-1' }),
    region: Region.nullable().meta({ description: 'That of its database host.', example: 'eu-central' }),
    blocked: Blocked.meta({
      description:
        'The block of its branches that lasts longest; each branch has its own. Null: none is blocked.',
    }),
    created_by: z.uuid(),
    tenant_id: z.string().meta({ example: 'acme' }),
    created_at: z.iso.datetime(),
    updated_at: z.iso.datetime(),
  })
  .meta({ id: 'Project' });

/** The columns of one project's record. */
export const ProjectDetails = Project.extend({
  spares_state: SparesState.nullable().meta({
    description:
      'The spares of its snapshots that are ready, of those that were asked for. Null: no number was asked for.',
    example: null,
  }),
  recoverable: z
    .strictObject({ from: Moment, until: Moment })
    .nullable()
    .meta({
      description:
        'The times as of which its branches can be recovered, those from after the creation of each. Null: its database host keeps no past.',
      example: { from: '2026-11-22T10:15:00.000000Z', until: '2026-11-23T10:15:00.000000Z' },
    }),
}).meta({ id: 'ProjectDetails' });

const SameName = {
  warning: z.string().optional().meta({ description: 'Another project that you can see has the same name.' }),
};

/** A project as the create response shows it. */
export const CreatedProject = Project.extend({ main_branch: CreatedBranch, ...SameName }).meta({
  id: 'CreatedProject',
});

/** A project as the response to its change shows it. */
export const ChangedProject = ProjectDetails.extend({
  warning: z.string().optional().meta({
    description:
      'Another project that you can see has the same name, or passwords that were given out before still lead to unmasked data.',
  }),
  credentials_rotated: z.int().optional().meta({
    description:
      'Branches whose passwords were replaced; present with `rotate_credentials`. Deleted ones that can be restored count.',
    example: 3,
  }),
}).meta({ id: 'ChangedProject' });

export const toProjectResponse = (row: ProjectView): z.output<typeof Project> => ({
  id: row.id,
  name: row.name,
  app_key: row.appKey,
  env: row.env,
  storage_quota_gib: row.storageQuotaGib,
  storage_used_bytes: row.storageUsedBytes,
  storage_state: row.storageState,
  status: row.status,
  branch_count: row.branchCount,
  leased_branch_count: row.leasedBranchCount,
  branch_limit: row.branchLimit,
  next_slot_at: row.nextSlotAt?.toISOString() ?? null,
  connection_attempts_per_minute: row.connectionAttempts,
  masked_only: row.maskedOnly,
  extensions: [...row.extensions],
  change_approvals: row.changeApprovals,
  max_slug_length: maxSlugLength(row.appKey, row.env),
  snapshot_schedule: row.snapshotSchedule,
  spares: row.spares ?? AUTOMATIC,
  durability: row.durability,
  durability_state: row.durability === 'sync' ? row.sync : 'off',
  host: row.hostName,
  region: row.region,
  blocked: blockedOf(row.blocks, row.hold),
  created_by: row.createdBy,
  tenant_id: row.tenantId,
  created_at: row.createdAt.toISOString(),
  updated_at: row.updatedAt.toISOString(),
});
