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
} from '../database/company-schema.ts';
import { type Database, inOneBatch, insertIf, isThere, type Statement } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { oauthGrants } from '../database/oauth-schema.ts';
import { accounts, apiKeys } from '../database/people-schema.ts';
import { auditEvents, organizationMembers, organizations, users } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
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
        and ${users.gid} not in (${people})))`;

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
 * Ends everything that gives these people access: sessions, the API keys that they made, the clients that they signed in, and their membership,
 * without which their trusts are refused and their streams end. Nothing of it comes back by itself.
 * @param condition about `provider_people`
 */
export function endPeople(db: Database, condition: SQL | undefined): Statement[] {
  const people = db.select({ id: providerPeople.id }).from(providerPeople).where(condition);
  const theirUsers = selectUsers(db, condition);
  return [
    db.delete(sessions).where(inArray(sessions.personId, people)),
    db.delete(apiKeys).where(inArray(apiKeys.createdBy, theirUsers)),
    db.delete(oauthGrants).where(inArray(oauthGrants.createdBy, theirUsers)),
    db.delete(organizationMembers).where(inArray(organizationMembers.userId, theirUsers)),
    db
      .update(providerPeople)
      .set({ version: sql`${providerPeople.version} + 1` })
      .where(condition),
  ];
}

/** The role by `claim_values` and SCIM groups of a row of `provider_people`, as `roleOf` has it. */
const roleByGroups: SQL = sql`coalesce(
  (select json_extract(entry.value, '$[1]')
    from ${identityProviders}, json_each(${identityProviders.roles}) entry
    where ${identityProviders.id} = ${providerPeople.providerId}
      and (json_extract(entry.value, '$[0]') in (select value from json_each(${providerPeople.claimValues}))
        or json_extract(entry.value, '$[0]') in (select ${providerGroups.displayName} from ${providerGroups}
          join ${providerGroupMembers} on ${providerGroupMembers.groupId} = ${providerGroups.id}
          where ${providerGroupMembers.personId} = ${providerPeople.id}))
    order by entry.key limit 1),
  (select ${identityProviders.defaultRole} from ${identityProviders}
    where ${identityProviders.id} = ${providerPeople.providerId}))`;

/**
 * Brings the roles of people up to date with their claims and SCIM groups, with their users and memberships,
 * which keys and trusts follow. In the batch that changes claims or groups: a role that is set afterwards
 * would stay the old one if the request ended in between. People whose loss would leave the tenant without
 * an owner stay owners.
 */
export function updateRoles(
  db: Database,
  { id: providerId, tenantId }: Pick<ProviderRow, 'id' | 'tenantId'>,
  personIds: readonly string[],
): Statement[] {
  const ids = sql`(select value from json_each(${JSON.stringify(personIds)}))`;
  const isOne = and(eq(providerPeople.providerId, providerId), sql`${providerPeople.id} in ${ids}`);
  const losing = sql`select ${providerPeople.id} from ${providerPeople} where ${isOne} and ${roleByGroups} <> 'owner'`;
  return [
    db
      .update(providerPeople)
      .set({
        role: sql`case when ${providerPeople.role} = 'owner' and ${roleByGroups} <> 'owner'
          and not ${hasOwnerBesides(tenantId, losing)} then 'owner' else ${roleByGroups} end`,
      })
      .where(isOne),
    db
      .update(users)
      .set({
        role: sql`(select ${providerPeople.role} from ${providerPeople} where ${providerPeople.id} = ${users.gid})`,
      })
      .where(inArray(users.id, selectUsers(db, isOne))),
    db
      .update(organizationMembers)
      .set({
        role: sql`(select ${users.role} from ${users} where ${users.id} = ${organizationMembers.userId})`,
      })
      .where(inArray(organizationMembers.userId, selectUsers(db, isOne))),
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

/** What the provider says of the roles of a person at a renewal. A role that it took back ends here. */
export const renewClaims = (
  db: Database,
  provider: ProviderRow,
  personId: string,
  claimValues: string[],
): Promise<void> =>
  inOneBatch(db, [
    db
      .update(providerPeople)
      .set({ claimValues })
      .where(and(eq(providerPeople.id, personId), eq(providerPeople.providerId, provider.id))),
    ...updateRoles(db, provider, [personId]),
  ]);

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
      decides: [providerPeople, person],
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
  const isIt = and(
    eq(providerPeople.id, known.id),
    eq(providerPeople.active, true),
    isNull(providerPeople.deletedAt),
  );
  // Of two sign-ins that could become the same person of SCIM, one does.
  const isLinked = and(isIt, or(isNull(providerPeople.subject), eq(providerPeople.subject, subject)));
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(providerPeople)
        .set({ subject, email, claimValues, signedInAt: now, updatedAt: now })
        .where(and(isLinked, isAllowed)),
    require: [[isThere(providerPeople, isLinked), 'SSO_DISABLED']],
    derived: updateRoles(db, provider, [known.id]),
    conflicts: { provider_people: 'SIGN_IN_FAILED' },
    returns: db.select().from(providerPeople).where(eq(providerPeople.id, known.id)),
  });
  if (!written.ok) return written;
  const [person] = written.value;
  return person ? ok(person) : fail({ code: 'SSO_DISABLED' });
}
