import { and, eq, lt, type SQL, sql } from 'drizzle-orm';
import type { Identity } from '../authentication/principal.ts';
import type { Database, Statement } from '../database/database.ts';
import { organizationMembers, organizations, users } from '../database/schema.ts';

export type UserRow = typeof users.$inferSelect;
export type TenantIdentity = Identity & { tenantId: string };

const isUserOf = ({ issuer, gid }: Identity): SQL | undefined =>
  and(eq(users.issuer, issuer), eq(users.gid, gid));

export const userOf = (db: Database, token: Identity) => db.select().from(users).where(isUserOf(token));

/** The id of the user if the record is as this token wrote it, otherwise no row. */
export const settledUserId = (db: Database, token: TenantIdentity) =>
  db
    .select({ id: users.id })
    .from(users)
    .where(and(isUserOf(token), eq(users.tenantId, token.tenantId), eq(users.tenantSeenAt, token.issuedAt)));

/**
 * The three upserts of specification 5.9: user, organization, membership. The first has no effect if the user's tenant
 * is no longer `tenantAsRead` or an equally new token was seen; then the others have none either.
 */
export function upsertUser(
  db: Database,
  token: TenantIdentity,
  tenantAsRead: string,
  now: Date,
): Statement[] {
  const claimed = {
    email: token.email,
    role: token.role,
    tenantId: token.tenantId,
    tenantSeenAt: token.issuedAt,
  };
  const { issuer, gid, tenantId, role } = token;
  const settled = settledUserId(db, token);
  return [
    db
      .insert(users)
      .values({ id: crypto.randomUUID(), issuer, gid, ...claimed, createdAt: now, updatedAt: now })
      .onConflictDoUpdate({
        target: [users.issuer, users.gid],
        set: { ...claimed, updatedAt: now },
        setWhere: sql`${eq(users.tenantId, tenantAsRead)} and ${lt(users.tenantSeenAt, token.issuedAt)}`,
      }),
    db
      .insert(organizations)
      .select(sql`select ${crypto.randomUUID()}, ${tenantId}, ${now.getTime()} where exists ${settled}`)
      .onConflictDoNothing(),
    db
      .insert(organizationMembers)
      .select(
        sql`select id, ${settled}, ${role}, ${now.getTime()} from ${organizations}
          where idp_tenant_id = ${tenantId} and exists ${settled}`,
      )
      .onConflictDoUpdate({
        target: [organizationMembers.organizationId, organizationMembers.userId],
        set: { role },
      }),
  ];
}
