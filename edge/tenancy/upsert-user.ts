import { and, eq, lt, type SQL, sql } from 'drizzle-orm';
import type { Identity } from '../authentication/principal.ts';
import type { Database, Statement } from '../database/database.ts';
import { organizationMembers, organizations, users } from '../database/schema.ts';

export type UserRow = typeof users.$inferSelect;
export type TenantIdentity = Identity & { tenantId: string };

const isUserOf = ({ issuer, gid }: Identity): SQL | undefined =>
  and(eq(users.issuer, issuer), eq(users.gid, gid));

export const userOf = (db: Database, token: Identity) => db.select().from(users).where(isUserOf(token));

/** Id of the user, as long as the record stands as this very token left it; nothing otherwise. */
export const settledUserId = (db: Database, token: TenantIdentity) =>
  db
    .select({ id: users.id })
    .from(users)
    .where(and(isUserOf(token), eq(users.tenantId, token.tenantId), eq(users.tenantSeenAt, token.issuedAt)));

/**
 * The three upserts of spec 5.9: user, organization, membership. The second and third do nothing when the
 * first did not: the user's tenant is no longer `tenantAsRead`, or a token as new as this one was seen.
 */
export function upsertUser(
  db: Database,
  token: TenantIdentity,
  tenantAsRead: string,
  now: Date,
): Statement[] {
  const said = {
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
      .values({ id: crypto.randomUUID(), issuer, gid, ...said, createdAt: now, updatedAt: now })
      .onConflictDoUpdate({
        target: [users.issuer, users.gid],
        set: { ...said, updatedAt: now },
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
