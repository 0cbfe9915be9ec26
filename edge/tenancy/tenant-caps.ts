import { and, eq, isNotNull, ne, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { DEFAULT_BRANCH_LIMIT, HIGHEST_BRANCH_LIMIT } from '../../shared/project/project-status.ts';
import { StorageQuotaGib } from '../../shared/project/storage-quota.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { accounts } from '../database/people-schema.ts';
import { auditEvents, organizations, type ProjectRow, projects, tenantCaps } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

type CapSettings = Pick<
  Settings,
  | 'TENANT_PROJECT_LIMIT'
  | 'TENANT_QUOTA_LIMIT_GIB'
  | 'SELF_SIGNUP_PROJECT_LIMIT'
  | 'SELF_SIGNUP_QUOTA_LIMIT_GIB'
>;

/** Far above any real number, so that a mistyped cap is noticed. */
const HIGHEST_CAP = 1_000_000;

const ProjectLimit = z
  .int()
  .min(0)
  .max(HIGHEST_CAP)
  .meta({ description: 'Number of projects.', example: 25 });
const QuotaLimit = z
  .number()
  .min(0)
  .max(HIGHEST_CAP)
  .meta({ description: 'Storage quotas of all projects together, in GiB.', example: 50 });

export const TenantCapsRequest = z
  .strictObject({ project_limit: ProjectLimit.optional(), storage_quota_limit_gib: QuotaLimit.optional() })
  .meta({ example: { project_limit: 25, storage_quota_limit_gib: 50 } });

/** The caps in effect and what they count. */
export const TenantCaps = z
  .strictObject({
    tenant_id: z.string().meta({ example: 'acme' }),
    project_limit: ProjectLimit,
    project_count: z.int().meta({ example: 4 }),
    storage_quota_limit_gib: QuotaLimit,
    storage_quota_gib: z.number().meta({ description: 'GiB promised to its projects.', example: 2.5 }),
  })
  .meta({ id: 'TenantCaps' });

/** Sums of decimal fractions are rounded, so that ten quotas of 0.1 GiB fit into a cap of 1 GiB. */
const DECIMALS = 6;

/**
 * The caps of a tenant and what they count, as SQL for the batch that checks them. Projects count until their
 * data is gone: only failed ones do not.
 * @param except a project that does not count
 */
export function tenantUsage(settings: CapSettings, tenantId: string, except = '') {
  const isSelfMade = sql`exists (select 1 from ${accounts} where tenant_id = ${tenantId})
    and not ${isThere(organizations, and(eq(organizations.idpTenantId, tenantId), isNotNull(organizations.name)))}`;
  const cap = (column: SQL, own: number, usual: number) =>
    sql<number>`coalesce((select ${column} from ${tenantCaps} where tenant_id = ${tenantId}),
      case when ${isSelfMade} then ${own} else ${usual} end)`;
  const counted = and(
    eq(projects.tenantId, tenantId),
    ne(projects.status, 'failed'),
    except === '' ? undefined : ne(projects.id, except),
  );
  return {
    projectLimit: cap(sql`project_limit`, settings.SELF_SIGNUP_PROJECT_LIMIT, settings.TENANT_PROJECT_LIMIT),
    projectCount: sql<number>`(select count(*) from ${projects} where ${counted})`,
    quotaLimitGib: cap(
      sql`storage_quota_limit_gib`,
      settings.SELF_SIGNUP_QUOTA_LIMIT_GIB,
      settings.TENANT_QUOTA_LIMIT_GIB,
    ),
    quotaGib: sql<number>`(select round(coalesce(sum(storage_quota_gib), 0), ${sql.raw(String(DECIMALS))})
      from ${projects} where ${counted})`,
  };
}

type UsageSql = ReturnType<typeof tenantUsage>;

export const hasProjectSlot = ({ projectCount, projectLimit }: UsageSql): SQL =>
  sql`${projectCount} < ${projectLimit}`;

export const hasQuotaFor = ({ quotaGib, quotaLimitGib }: UsageSql, wantedGib: number): SQL =>
  sql`round(${quotaGib} + ${wantedGib}, ${sql.raw(String(DECIMALS))}) <= ${quotaLimitGib}`;

export const projectLimitReached = ({ projectLimit, projectCount }: UsageSql): Failure => ({
  code: 'PROJECT_LIMIT_REACHED',
  fields: { limit: projectLimit, current: projectCount, retry_after: null },
});

export const tenantQuotaReached = ({ quotaLimitGib, quotaGib }: UsageSql): Failure => ({
  code: 'TENANT_QUOTA_REACHED',
  fields: { limit: quotaLimitGib, current: quotaGib, retry_after: null },
});

/**
 * Replaces the caps of a tenant and audits the change, in one batch. A cap that is left out is the one of the
 * settings again. A cap below what the tenant already has removes nothing.
 * @param request of the operator, for the audit row
 * @returns or NOT_FOUND for a tenant without users
 */
export async function changeTenantCaps(
  db: Database,
  settings: CapSettings,
  tenantId: string,
  { project_limit, storage_quota_limit_gib }: z.output<typeof TenantCapsRequest>,
  request: Pick<AuditActor, 'ip' | 'requestId'>,
): Promise<Result<z.output<typeof TenantCaps>, Failure>> {
  const organization = eq(organizations.idpTenantId, tenantId);
  const [before] = await db.select().from(tenantCaps).where(eq(tenantCaps.tenantId, tenantId));
  const now = new Date();
  const caps = {
    projectLimit: project_limit ?? null,
    storageQuotaLimitGib: storage_quota_limit_gib ?? null,
    updatedAt: now,
  };
  const metadata = { from: capsIn(before), to: capsIn(caps) };
  const event = auditEvent('tenant.caps.changed', { ...noActor(tenantId), ...request }, { metadata }, now);
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(organizations, organization), 'NOT_FOUND']],
    rest: (isWritten) => [
      db.delete(tenantCaps).where(and(eq(tenantCaps.tenantId, tenantId), isWritten)),
      insertIf(db, tenantCaps, { tenantId, ...caps }, isWritten),
    ],
    returns: db.select(tenantUsage(settings, tenantId)).from(organizations).where(organization),
  });
  if (!written.ok) return written;
  const [usage] = written.value;
  if (!usage) return fail({ code: 'NOT_FOUND' });
  return ok({
    tenant_id: tenantId,
    project_limit: usage.projectLimit,
    project_count: usage.projectCount,
    storage_quota_limit_gib: usage.quotaLimitGib,
    storage_quota_gib: usage.quotaGib,
  });
}

type Caps = Pick<typeof tenantCaps.$inferSelect, 'projectLimit' | 'storageQuotaLimitGib'>;

const capsIn = (caps: Caps | undefined) => ({
  project_limit: caps?.projectLimit ?? null,
  storage_quota_limit_gib: caps?.storageQuotaLimitGib ?? null,
});

/** Caps on what a project's users may choose themselves (specification 8). */
export const ProjectCaps = z
  .strictObject({
    project_id: z.uuid(),
    branch_limit: z.int().min(DEFAULT_BRANCH_LIMIT).max(HIGHEST_BRANCH_LIMIT).meta({
      description: 'All branches of the project, up to the setting `BRANCH_LIMIT_MAX`.',
      example: 20,
    }),
    leased_branch_limit: z.int().min(0).max(HIGHEST_BRANCH_LIMIT).meta({
      description: 'Branches with a lease on top of `branch_limit`, up to the setting `BRANCH_LIMIT_MAX`.',
      example: 20,
    }),
    storage_quota_cap_gib: StorageQuotaGib,
  })
  .meta({ id: 'ProjectCaps' });

export const CapsChange = ProjectCaps.omit({ project_id: true })
  .partial()
  .refine((change) => Object.keys(change).length > 0, 'change at least one field')
  .meta({ example: { branch_limit: 20 } });

/**
 * Changes the caps and audits the change, in one batch. A cap below what the project already has removes
 * nothing.
 * @param request of the operator, for the audit row
 */
export async function changeCaps(
  db: Database,
  settings: Settings,
  projectId: string,
  change: z.output<typeof CapsChange>,
  request: Pick<AuditActor, 'ip' | 'requestId'>,
): Promise<Result<z.output<typeof ProjectCaps>, Failure>> {
  const theProject = eq(projects.id, projectId);
  const [project] = await db.select().from(projects).where(theProject);
  if (!project) return fail({ code: 'NOT_FOUND' });
  const max = settings.BRANCH_LIMIT_MAX;
  const tooHigh = LIMITS.find((name) => (change[name] ?? 0) > max);
  if (tooHigh) {
    const details = [{ path: tooHigh, message: `must be at most ${max} (setting BRANCH_LIMIT_MAX)` }];
    return fail({ code: 'VALIDATION_FAILED', fields: { details } });
  }
  const from = capsOf(project, settings);
  const to = { ...from, ...change };
  const now = new Date();
  const actor = { ...noActor(project.tenantId), ...request };
  const event = auditEvent('project.caps.changed', actor, { projectId, metadata: { from, to } }, now);
  const values = {
    // Only the requested fields, so that a concurrent change of the other cap is not reverted.
    branchLimit: change.branch_limit,
    leasedBranchLimit: change.leased_branch_limit,
    storageQuotaCapGib: change.storage_quota_cap_gib,
    updatedAt: now,
  };
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(projects, theProject), 'NOT_FOUND']],
    rest: (isWritten) => [db.update(projects).set(values).where(and(theProject, isWritten))],
    returns: db.select().from(projects).where(theProject),
  });
  return written.ok
    ? ok({ project_id: projectId, ...capsOf(written.value.at(0) ?? project, settings) })
    : written;
}

const LIMITS = ['branch_limit', 'leased_branch_limit'] as const;

const capsOf = (
  project: ProjectRow,
  settings: Settings,
): Omit<z.output<typeof ProjectCaps>, 'project_id'> => ({
  branch_limit: project.branchLimit,
  leased_branch_limit: project.leasedBranchLimit ?? settings.LEASED_BRANCH_LIMIT,
  storage_quota_cap_gib: project.storageQuotaCapGib,
});
