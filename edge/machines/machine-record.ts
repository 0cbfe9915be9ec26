import { and, eq, isNull, lte, or } from 'drizzle-orm';
import type { Machine } from '../authentication/principal.ts';
import { BoundedMap } from '../bounded-map.ts';
import { type Database, openDatabase } from '../database/database.ts';
import { apiKeys, trusts } from '../database/machine-schema.ts';
import { organizationMembers, organizations, projects, users } from '../database/schema.ts';

/** How long an isolate caches a machine: a deleted key, or a lower role of its creator, counts within this time. */
export const CACHED_MS = 10_000;
const CACHED_MACHINES = 10_000;
/** The last use is recorded at most once in this time. */
const USE_RECORDED_EVERY_MS = 60_000;

/** A key or a trust, with the user who created it. */
export interface MachineRecord extends Machine {
  tenantId: string;
  role: string;
  scopes: readonly string[];
  projectId: string | null;
  branchPattern: string | null;
  cidrs: readonly string[] | null;
  /** Null: a trust, which has no secret and does not expire. */
  secretHash: string | null;
  expiresAt: Date | null;
  lastUsedAt: Date | null;
  creator: { id: string; email: string; role: string };
}

const CREATOR = { id: users.id, email: users.email, role: organizationMembers.role };

/**
 * Reads a machine. There is none if its creator has left the tenant, because it acts in that user's name.
 */
const READS: Record<Machine['type'], (db: Database, id: string) => Promise<MachineRecord | null>> = {
  key: async (db, id) => {
    const [row] = await db
      .select({ key: apiKeys, creator: CREATOR })
      .from(apiKeys)
      .innerJoin(users, and(eq(users.id, apiKeys.createdBy), eq(users.tenantId, apiKeys.tenantId)))
      .innerJoin(organizations, eq(organizations.idpTenantId, apiKeys.tenantId))
      .innerJoin(organizationMembers, membership())
      .where(eq(apiKeys.id, id));
    return row ? { type: 'key', ...row.key, creator: row.creator } : null;
  },
  workload: async (db, id) => {
    const [row] = await db
      .select({ trust: trusts, tenantId: projects.tenantId, creator: CREATOR })
      .from(trusts)
      .innerJoin(projects, eq(projects.id, trusts.projectId))
      .innerJoin(users, and(eq(users.id, trusts.createdBy), eq(users.tenantId, projects.tenantId)))
      .innerJoin(organizations, eq(organizations.idpTenantId, projects.tenantId))
      .innerJoin(organizationMembers, membership())
      .where(eq(trusts.id, id));
    if (!row) return null;
    const { tenantId, creator } = row;
    const unlimited = { cidrs: null, secretHash: null, expiresAt: null };
    return { type: 'workload', ...row.trust, ...unlimited, tenantId, scopes: ['read', 'write'], creator };
  },
};

const membership = () =>
  and(eq(organizationMembers.organizationId, organizations.id), eq(organizationMembers.userId, users.id));

const caches = new WeakMap<D1Database, BoundedMap<string, { record: MachineRecord; until: number }>>();

/** The machine as it was at most `CACHED_MS` ago; null if there is none. */
export async function machineRecord(
  binding: D1Database,
  { type, id }: Machine,
  now: Date,
): Promise<MachineRecord | null> {
  const cache = caches.get(binding) ?? new BoundedMap(CACHED_MACHINES);
  caches.set(binding, cache);
  const name = JSON.stringify([type, id]);
  const cached = cache.get(name);
  if (cached && now.getTime() < cached.until) return cached.record;
  const record = await READS[type](openDatabase(binding), id);
  if (record) cache.set(name, { record, until: now.getTime() + CACHED_MS });
  return record;
}

/** Records the use of a machine, unless one was recorded within the last minute. */
export async function recordUse(binding: D1Database, record: MachineRecord, now: Date): Promise<void> {
  const due = new Date(now.getTime() - USE_RECORDED_EVERY_MS);
  if (record.lastUsedAt && record.lastUsedAt > due) return;
  record.lastUsedAt = now;
  const table = record.type === 'key' ? apiKeys : trusts;
  await openDatabase(binding)
    .update(table)
    .set({ lastUsedAt: now })
    .where(and(eq(table.id, record.id), or(isNull(table.lastUsedAt), lte(table.lastUsedAt, due))));
}
