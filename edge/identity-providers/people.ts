import { and, eq, inArray, isNull, or, type SQL, sql } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { AuditActor } from '../database/column-types.ts';
import {
  identityProviders,
  type ProviderPersonRow,
  type ProviderRow,
  providerGroupMembers,
  providerGroups,
  providerPeople,
  providerRefreshTokens,
  providerSessions,
} from '../database/company-schema.ts';
import { type Database, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { accounts, apiKeys } from '../database/people-schema.ts';
import { auditEvents, organizationMembers, organizations, users } from '../database/schema.ts';
import { roleOf } from './claims.ts';

/**
 * Whether the tenant has an owner who is none of these people: an account, or a user with a membership.
 * @param people a query of person ids, or one id
 */
export const hasOwnerBesides = (tenantId: string, people: SQL): SQL =>
  sql`(${isThere(accounts, and(eq(accounts.tenantId, tenantId), eq(accounts.role, 'owner')))}
    or exists (select 1 from ${organizationMembers}
      join ${organizations} on ${organizations.id} = ${organizationMembers.organizationId}
      join ${users} on ${users.id} = ${organizationMembers.userId}
      where ${organizations.idpTenantId} = ${tenantId} and ${organizationMembers.role} = 'owner'
        and ${users.tenantId} = ${tenantId} and ${users.gid} not in (${people})))`;

/** An owner among the people of a tenant's providers, who can sign in. */
export const hasActiveOwner = (tenantId: string) =>
  and(
    eq(providerPeople.tenantId, tenantId),
    eq(providerPeople.role, 'owner'),
    eq(providerPeople.active, true),
    isNull(providerPeople.deletedAt),
  );

const selectUsers = (db: Database, condition: SQL | undefined) =>
  db
    .select({ id: users.id })
    .from(users)
    .innerJoin(
      providerPeople,
      and(eq(providerPeople.id, users.gid), eq(providerPeople.tenantId, users.tenantId)),
    )
    .where(condition);

/**
 * Ends everything that gives these people access: sessions, the API keys that they made, and their membership,
 * without which their trusts are refused and their streams end. Nothing of it comes back by itself.
 * @param condition about `provider_people`
 */
export function endPeople(db: Database, condition: SQL | undefined): Statement[] {
  const people = db.select({ id: providerPeople.id }).from(providerPeople).where(condition);
  const theirUsers = selectUsers(db, condition);
  return [
    db.delete(providerRefreshTokens).where(inArray(providerRefreshTokens.accountId, people)),
    db.delete(providerSessions).where(inArray(providerSessions.accountId, people)),
    db.delete(apiKeys).where(inArray(apiKeys.createdBy, theirUsers)),
    db.delete(organizationMembers).where(inArray(organizationMembers.userId, theirUsers)),
    db
      .update(providerPeople)
      .set({ version: sql`${providerPeople.version} + 1` })
      .where(condition),
  ];
}

/** The role that a person gets, unless the tenant would lose its last owner by it. */
const roleUnlessLastOwner = ({ id, tenantId }: ProviderPersonRow, role: string): SQL =>
  sql`case when ${providerPeople.role} = 'owner' and ${role} <> 'owner'
    and not ${hasOwnerBesides(tenantId, sql`${id}`)} then 'owner' else ${role} end`;

/** Gives a person a role, with its user and membership, which the keys and trusts of the person follow. */
function setRole(db: Database, person: ProviderPersonRow, role: string, condition: SQL): Statement[] {
  const isIt = and(eq(providerPeople.id, person.id), condition);
  const current = sql`(select role from ${providerPeople} where id = ${person.id})`;
  return [
    db
      .update(providerPeople)
      .set({ role: roleUnlessLastOwner(person, role) })
      .where(isIt),
    db
      .update(users)
      .set({ role: current })
      .where(and(eq(users.gid, person.id), eq(users.tenantId, person.tenantId), condition)),
    db
      .update(organizationMembers)
      .set({ role: current })
      .where(
        and(
          inArray(organizationMembers.userId, selectUsers(db, eq(providerPeople.id, person.id))),
          condition,
        ),
      ),
  ];
}

/** Names of the SCIM groups of a person. */
export const groupsOf = async (db: Database, personId: string): Promise<string[]> => {
  const rows = await db
    .select({ name: providerGroups.displayName })
    .from(providerGroups)
    .innerJoin(providerGroupMembers, eq(providerGroupMembers.groupId, providerGroups.id))
    .where(eq(providerGroupMembers.personId, personId));
  return rows.map(({ name }) => name);
};

/** Brings the roles of people up to date with their SCIM groups. */
export async function refreshRoles(
  db: Database,
  provider: ProviderRow,
  personIds: readonly string[],
): Promise<void> {
  for (const id of personIds) {
    const [person] = await db.select().from(providerPeople).where(eq(providerPeople.id, id));
    if (!person) continue;
    const role = roleOf(provider, [...person.claimValues, ...(await groupsOf(db, id))]);
    if (role === person.role) continue;
    await db.batch(setRole(db, person, role, sql`true`) as [Statement, ...Statement[]]);
  }
}

/** Who signed in at the provider, as its claims say. */
export interface SignedInPerson {
  subject: string;
  email: string;
  claimValues: string[];
}

/**
 * The person with this subject; failing that, the one that SCIM made with the subject as `externalId`, or
 * with the address as `userName`, and that never signed in.
 */
async function findPerson(
  db: Database,
  { id: providerId }: ProviderRow,
  { subject, email }: SignedInPerson,
): Promise<ProviderPersonRow | undefined> {
  const isNew = isNull(providerPeople.subject);
  const rows = await db
    .select()
    .from(providerPeople)
    .where(
      and(
        eq(providerPeople.providerId, providerId),
        or(
          eq(providerPeople.subject, subject),
          and(isNew, eq(providerPeople.externalId, subject)),
          and(isNew, eq(providerPeople.userName, email)),
        ),
      ),
    );
  return (
    rows.find((row) => row.subject === subject) ??
    rows.find((row) => row.externalId === subject) ??
    rows.find((row) => row.userName === email)
  );
}

/**
 * The person who signed in, created or updated, with the role of its claims and groups.
 * @returns or SSO_DISABLED
 */
export async function admitPerson(
  db: Database,
  provider: ProviderRow,
  signedIn: SignedInPerson,
  actor: AuditActor,
  now: Date,
): Promise<Result<ProviderPersonRow, Failure>> {
  const known = await findPerson(db, provider, signedIn);
  const { subject, email, claimValues } = signedIn;
  const { id: providerId, tenantId } = provider;
  const isProvider = isThere(identityProviders, eq(identityProviders.id, providerId));
  if (!known) {
    const person: ProviderPersonRow = {
      id: crypto.randomUUID(),
      providerId,
      tenantId,
      subject,
      userName: email,
      externalId: null,
      email,
      role: roleOf(provider, claimValues),
      claimValues,
      provisioned: false,
      active: true,
      deletedAt: null,
      attributes: {},
      version: 0,
      signedInAt: now,
      createdAt: now,
      updatedAt: now,
    };
    const about = { metadata: { person_id: person.id, provider_id: providerId, email, role: person.role } };
    const written = await guardedWrite(db, {
      first: [providerPeople, person],
      require: [[isProvider, 'NOT_FOUND']],
      rest: (isWritten) => [
        insertIf(db, auditEvents, auditEvent('person.created', actor, about, now), isWritten),
      ],
      // Another sign-in of the same person was first.
      conflicts: { provider_people: 'SIGN_IN_FAILED' },
    });
    return written.ok ? ok(person) : written;
  }
  if (!known.active || known.deletedAt !== null) return fail({ code: 'SSO_DISABLED' });
  const role = roleOf(provider, [...claimValues, ...(await groupsOf(db, known.id))]);
  const isIt = and(
    eq(providerPeople.id, known.id),
    eq(providerPeople.active, true),
    isNull(providerPeople.deletedAt),
  );
  // Of two sign-ins that could become the same person of SCIM, one does.
  const isLinked = and(isIt, or(isNull(providerPeople.subject), eq(providerPeople.subject, subject)));
  const written = await guardedWrite(db, {
    first: (isAllowed) =>
      db
        .update(providerPeople)
        .set({ subject, email, claimValues, signedInAt: now, updatedAt: now })
        .where(and(isLinked, isAllowed)),
    require: [[isThere(providerPeople, isLinked), 'SSO_DISABLED']],
    rest: (isAllowed) => setRole(db, known, role, isAllowed),
    conflicts: { provider_people: 'SIGN_IN_FAILED' },
    returns: db.select().from(providerPeople).where(eq(providerPeople.id, known.id)),
  });
  if (!written.ok) return written;
  const [person] = written.value;
  return person ? ok(person) : fail({ code: 'SSO_DISABLED' });
}
