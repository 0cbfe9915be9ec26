import { and, eq, isNotNull, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, noActor } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { sha256 } from '../crypto/encoding.ts';
import {
  identityProviders,
  providerDomains,
  providerPeople,
  signInPolicies,
} from '../database/company-schema.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { accounts } from '../database/people-schema.ts';
import { auditEvents, organizations } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { providerOfAddress } from '../identity-providers/domains.ts';
import { hasActiveOwner } from '../identity-providers/people.ts';
import { repeatIfLost } from '../lost-object.ts';
import { plainMail, sendsMail } from '../mail/mail.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce } from '../rate-limits/limiter-client.ts';
import { challengesOf } from './challenge.ts';
import { holderOf, openCompanySession } from './company-sign-in.ts';
import { type LoginResponse, loginResponse, signIn } from './first-factor.ts';
import { withinPasswordAttempts } from './password-attempts.ts';
import { newRecoveryCode, plainCode } from './second-factor.ts';
import { deleteSessions } from './sessions.ts';
import type { SignInContext } from './sign-in-context.ts';

export const SignInPolicy = z
  .strictObject({
    tenant_id: z.string().meta({ example: 'acme' }),
    name: z.string().nullable().meta({ description: 'As the operator named it.', example: 'Acme Ltd.' }),
    sso_required: z.boolean().meta({
      description:
        'Whether people with an address in a verified domain can sign in by the identity provider of the tenant only.',
    }),
    has_recovery_code: z
      .boolean()
      .meta({ description: 'Whether an owner can sign in while the provider is away.' }),
  })
  .meta({ id: 'TenantSettings' });

export const ChangedSignInPolicy = SignInPolicy.extend({
  recovery_code: z.string().nullable().meta({
    description:
      'With it, one owner can sign in once while the provider is away. Shown only when it is made.',
    example: 'k3ud-7xqa-m2pz-w5tc',
  }),
}).meta({ id: 'ChangedTenantSettings' });

type Policy = z.output<typeof SignInPolicy>;
type Changed = z.output<typeof ChangedSignInPolicy>;

export async function readPolicy(db: Database, tenantId: string): Promise<Policy> {
  const [[policy], [organization]] = await Promise.all([
    db.select().from(signInPolicies).where(eq(signInPolicies.tenantId, tenantId)),
    db.select().from(organizations).where(eq(organizations.idpTenantId, tenantId)),
  ]);
  return {
    tenant_id: tenantId,
    name: organization?.name ?? null,
    sso_required: policy?.ssoRequired ?? false,
    has_recovery_code: policy !== undefined && policy.recoveryHash !== null,
  };
}

/** Bound to its tenant, so that a code is of no use elsewhere. */
const hashOf = (tenantId: string, code: string) => sha256(JSON.stringify([tenantId, plainCode(code)]));

/** Returns whether the bearer, or a person with the same address, has signed in by a provider of the tenant. */
const hasTried = ({ tenantId, email, providerId }: Principal): SQL =>
  providerId !== undefined
    ? sql`true`
    : isThere(
        providerPeople,
        and(
          eq(providerPeople.tenantId, tenantId),
          eq(providerPeople.email, email.toLowerCase()),
          eq(providerPeople.active, true),
          isNotNull(providerPeople.signedInAt),
        ),
      );

const inDomainsOf = (tenantId: string, { email }: typeof accounts | typeof providerPeople): SQL =>
  sql`substr(${email}, instr(${email}, '@') + 1) in
    (select domain from ${providerDomains} where tenant_id = ${tenantId} and verified_at is not null)`;

/**
 * Requires the provider for the tenant's domains, or not any more. Requiring it makes a recovery code and ends
 * the sessions that members of these domains have without the provider, but for that of the request.
 * @returns or SSO_NOT_TRIED until the owner has signed in by it once; RATE_LIMITED, because every owner gets a mail
 */
export async function changePolicy(
  context: SignInContext,
  principal: Principal,
  required: boolean,
): Promise<Result<Changed, Failure>> {
  const { db, client } = context;
  const { tenantId } = principal;
  const before = await readPolicy(db, tenantId);
  if (before.sso_required === required) return ok({ ...before, recovery_code: null });
  const counted = await enforce(context.env, bucketOf.ownerNotices(tenantId));
  if (!counted.ok) return counted;
  const now = context.now();
  const code = required ? newRecoveryCode() : null;
  const recoveryHash = code === null ? null : await hashOf(tenantId, code);
  const about = { metadata: { from: before.sso_required, to: required } };
  const event = auditEvent('sign_in_policy.changed', actorWith(client, principal), about, now);
  const ofDomains = and(eq(accounts.tenantId, tenantId), inDomainsOf(tenantId, accounts));
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[required ? hasTried(principal) : sql`true`, 'SSO_NOT_TRIED']],
    rest: (isWritten) => [
      db.delete(signInPolicies).where(and(eq(signInPolicies.tenantId, tenantId), isWritten)),
      insertIf(
        db,
        signInPolicies,
        { tenantId, ssoRequired: required, recoveryHash, updatedAt: now },
        isWritten,
      ),
      ...(required
        ? [
            deleteSessions(
              db,
              and(
                sql`${sessions.accountId} in (select id from ${accounts} where ${ofDomains})`,
                sql`${sessions.id} <> ${principal.sessionId ?? ''}`,
                isWritten,
              ),
            ),
            db
              .update(accounts)
              .set({ version: sql`${accounts.version} + 1` })
              .where(and(ofDomains, isWritten)),
          ]
        : []),
    ],
  });
  if (!written.ok) return written;
  await notifyOwners(context, tenantId, `${principal.email} changed how your team signs in`, [
    required
      ? 'Members with an address of your domains can now sign in by the identity provider of your team only.'
      : 'Members can use every way to sign in again.',
  ]);
  return ok({ ...(await readPolicy(db, tenantId)), recovery_code: code });
}

/** Replaces the recovery code. @returns or SSO_NOT_TRIED while the provider is not required */
export async function replaceOwnerCode(
  context: SignInContext,
  principal: Principal,
): Promise<Result<Changed, Failure>> {
  const { db, client } = context;
  const { tenantId } = principal;
  const counted = await enforce(context.env, bucketOf.ownerNotices(tenantId));
  if (!counted.ok) return counted;
  const code = newRecoveryCode();
  const recoveryHash = await hashOf(tenantId, code);
  const now = context.now();
  const isIt = and(eq(signInPolicies.tenantId, tenantId), eq(signInPolicies.ssoRequired, true));
  const event = auditEvent('owner_recovery_code.created', actorWith(client, principal), {}, now);
  const written = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(signInPolicies, isIt), 'NOT_FOUND']],
    rest: (isWritten) => [db.update(signInPolicies).set({ recoveryHash }).where(and(isIt, isWritten))],
  });
  if (!written.ok) return written;
  await notifyOwners(context, tenantId, 'A new recovery code for owners', [
    `${principal.email} made a new recovery code for the owners of your team. The former one is not valid any more.`,
  ]);
  return ok({ ...(await readPolicy(db, tenantId)), recovery_code: code });
}

/** Owners who get a notice, the oldest ones, so that new ones cannot take their place. */
const NOTIFIED_OWNERS_MAX = 50;

/**
 * The addresses of the owners: of accounts, and of people of a provider. SCIM can name people by any address, and those outside
 * of the verified domains can be those of other companies.
 */
async function ownersOf(db: Database, tenantId: string): Promise<string[]> {
  const [own, people] = await Promise.all([
    db
      .select({ email: accounts.email })
      .from(accounts)
      .where(and(eq(accounts.tenantId, tenantId), eq(accounts.role, 'owner')))
      .orderBy(accounts.createdAt)
      .limit(NOTIFIED_OWNERS_MAX),
    db
      .select({ email: providerPeople.email })
      .from(providerPeople)
      .where(and(hasActiveOwner(tenantId), inDomainsOf(tenantId, providerPeople)))
      .orderBy(providerPeople.createdAt)
      .limit(NOTIFIED_OWNERS_MAX),
  ]);
  const addresses = new Set([...own, ...people].map(({ email }) => email.toLowerCase()));
  return [...addresses].slice(0, NOTIFIED_OWNERS_MAX);
}

async function notifyOwners(
  { env, db, settings }: SignInContext,
  tenantId: string,
  subject: string,
  paragraphs: readonly string[],
): Promise<void> {
  if (!sendsMail(settings)) return;
  const text = [...paragraphs, 'If you did not expect this, talk to the other owners of your team now.'];
  for (const address of await ownersOf(db, tenantId)) {
    const mail = plainMail(address, `${settings.SERVICE_NAME}: ${subject}`, text);
    await repeatIfLost(() => challengesOf(env, address).notify(mail));
  }
}

/**
 * Signs in an owner with the recovery code of the tenant, once. Each use is audited and mailed to all owners.
 * @returns or CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function recoverOwner(
  context: SignInContext,
  email: string,
  code: string,
): Promise<Result<LoginResponse, Failure>> {
  const used = await withinPasswordAttempts(context, email, async () =>
    ok(await useOwnerCode(context, email, code)),
  );
  if (!used.ok) return used;
  return used.value ?? fail({ code: 'CODE_WRONG' });
}

/** Null for a wrong code, and for an address that is none of an owner. */
async function useOwnerCode(
  context: SignInContext,
  email: string,
  code: string,
): Promise<Result<LoginResponse, Failure> | null> {
  const { db, client } = context;
  const found = await providerOfAddress(db, email);
  if (!found) return null;
  const { tenantId } = found.provider;
  const [[account], [person]] = await Promise.all([
    db
      .select()
      .from(accounts)
      .where(and(eq(accounts.email, email), eq(accounts.tenantId, tenantId), eq(accounts.role, 'owner'))),
    db
      .select({ person: providerPeople, provider: identityProviders })
      .from(providerPeople)
      .innerJoin(identityProviders, eq(identityProviders.id, providerPeople.providerId))
      .where(and(eq(providerPeople.email, email), hasActiveOwner(tenantId))),
  ]);
  if (!account && !person) return null;
  const now = context.now();
  const isCode = and(
    eq(signInPolicies.tenantId, tenantId),
    eq(signInPolicies.recoveryHash, await hashOf(tenantId, code)),
  );
  const actor = { ...noActor(tenantId), ...client, email };
  const event = auditEvent('owner_recovery_code.used', actor, {}, now);
  const used = await guardedWrite(db, {
    decides: [auditEvents, event],
    require: [[isThere(signInPolicies, isCode), 'CODE_WRONG']],
    rest: (isWritten) => [
      db.update(signInPolicies).set({ recoveryHash: null, updatedAt: now }).where(and(isCode, isWritten)),
    ],
  });
  if (!used.ok) return null;
  await notifyOwners(context, tenantId, 'The recovery code of the owners was used', [
    `${email} signed in with the recovery code. It is used up: make a new one in the settings of your team.`,
  ]);
  const factors = { first_factor: 'owner_recovery_code', second_factor: null } as const;
  const signedIn = person
    ? await openCompanySession(context, holderOf(person.person, person.provider), null, 'owner_recovery_code')
    : await signIn(context, { account: account as NonNullable<typeof account> }, factors);
  return signedIn.ok ? ok(loginResponse(signedIn.value)) : signedIn;
}
