import { notExists } from 'drizzle-orm';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import { seal } from '../crypto/seal.ts';
import type { AuditActor } from '../database/column-types.ts';
import { hasChanged, inOneBatch, insertIf } from '../database/database.ts';
import { type SecondFactorRow, secondFactors } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { ApiError } from '../errors.ts';
import { sendsMail } from '../mail/mail.ts';
import { materialize } from '../tenancy/users.ts';
import { challengesOf } from './challenge.ts';

import type { LoginResponse } from './first-factor.ts';
import { identityOfPerson, type Person } from './person.ts';
import {
  type NewRecoveryCodes,
  newRecoveryCodes,
  type SecondFactorContext,
  secondFactorOf,
  secretSealContext,
  setUpSecret,
  stepOf,
  totpUri,
} from './second-factor.ts';
import { completeSecondStep, withinAttempts } from './second-step.ts';

/** After a first factor by e-mail, a second code in the same mailbox proves nothing new. */
const isSecondMail = ({ preAuth }: SecondFactorContext) => preAuth.first_factor === 'email';

/** In lower case; a provider may return the address in any case. */
const addressOf = ({ preAuth }: SecondFactorContext) => preAuth.user.email.toLowerCase();

/**
 * Mails a code for the pre-auth token. A new code replaces the previous one.
 * @returns when the code expires, in Unix milliseconds
 * @throws ApiError FORBIDDEN (`required`), SECOND_FACTOR_ENROLLED, MAIL_UNAVAILABLE
 */
export async function mailCode(context: SecondFactorContext): Promise<number> {
  const { user, step, jti } = context.preAuth;
  if (isSecondMail(context)) throw new ApiError('FORBIDDEN', { required: 'first factor password' });
  const [enrolled] = await secondFactorOf(context.db, user);
  if (step === 'setup' && enrolled) throw new ApiError('SECOND_FACTOR_ENROLLED');
  if (step === 'verify' && enrolled?.method !== 'email') {
    throw new ApiError('FORBIDDEN', { required: 'second factor email' });
  }
  if (!sendsMail(context.settings)) throw new ApiError('MAIL_UNAVAILABLE');
  const address = addressOf(context);
  const request = { kind: 'second_factor', challengeId: jti, address, mail: 'code' } as const;
  return (await challengesOf(context.env, address).start(request)).expiresAt;
}

/** Whether the code is the last one mailed for this pre-auth token. A right code is consumed. */
export async function isMailedCode(context: SecondFactorContext, code: string): Promise<boolean> {
  if (isSecondMail(context)) return false;
  const submission = { challengeId: context.preAuth.jti, kinds: ['second_factor' as const], code };
  return (await challengesOf(context.env, addressOf(context)).verify(submission)).ok;
}

const secretOf = ({ settings, preAuth }: SecondFactorContext) =>
  setUpSecret(settings.CREDENTIAL_KEYS, preAuth.jti);

/** Also true for a token of the step `verify`, which was issued because a factor was enrolled. */
export async function isEnrolled({ db, preAuth }: SecondFactorContext): Promise<boolean> {
  const { step, user } = preAuth;
  return step === 'verify' || (await secondFactorOf(db, user)).length > 0;
}

/** @throws ApiError SECOND_FACTOR_ENROLLED */
async function requireNoFactor(context: SecondFactorContext): Promise<void> {
  if (await isEnrolled(context)) throw new ApiError('SECOND_FACTOR_ENROLLED');
}

/**
 * The secret for an authenticator app. It is the same for each call with one pre-auth token.
 * @throws ApiError SECOND_FACTOR_ENROLLED
 */
export async function startSetUp(context: SecondFactorContext): Promise<{ secret: string; uri: string }> {
  await requireNoFactor(context);
  const secret = await secretOf(context);
  const { settings, preAuth } = context;
  return { secret, uri: totpUri(secret, { issuer: settings.SERVICE_NAME, label: preAuth.user.email }) };
}

type Enrolment = Pick<SecondFactorRow, 'method' | 'keyId' | 'sealedSecret' | 'lastStep'>;

/** The factor that a code enrols: the app that generated it or the mailbox it was sent to; null for a wrong code. */
async function enrolmentBy(context: SecondFactorContext, code: string): Promise<Enrolment | null> {
  const secret = await secretOf(context);
  const lastStep = stepOf(secret, code, context.now());
  if (lastStep !== null) {
    const { CREDENTIAL_KEYS } = context.settings;
    const { keyId, sealed } = await seal(CREDENTIAL_KEYS, secretSealContext(context.preAuth.user), secret);
    return { method: 'totp', keyId, sealedSecret: sealed, lastStep };
  }
  if (!(await isMailedCode(context, code))) return null;
  return { method: 'email', keyId: null, sealedSecret: null, lastStep: null };
}

/** The actor of an audit event of this step; null for a user without a tenant, who has no audit log. */
export async function auditActorOf(
  context: SecondFactorContext,
  person: Person,
  now: Date,
): Promise<AuditActor | null> {
  const identity = await identityOfPerson(context, person, now);
  const { tenantId } = identity;
  if (tenantId === null) return null;
  return actorWith(context.client, await materialize(context.env.DB, { ...identity, tenantId }, now));
}

/** @throws ApiError SECOND_FACTOR_ENROLLED when a concurrent request has enrolled a factor first */
async function enrol(
  context: SecondFactorContext,
  person: Person,
  enrolment: Enrolment,
  recovery: NewRecoveryCodes,
): Promise<void> {
  const { db } = context;
  const now = context.now();
  const { issuer, gid } = context.preAuth.user;
  const { method } = enrolment;
  const actor = await auditActorOf(context, person, now);
  const event = actor && auditEvent('second_factor.enrolled', actor, { metadata: { method } }, now);
  const isFirst = notExists(secondFactorOf(db, { issuer, gid }));
  const results = await inOneBatch(db, [
    ...(event ? [insertIf(db, auditEvents, event, isFirst)] : []),
    ...recovery.statements(isFirst),
    db
      .insert(secondFactors)
      .values({ issuer, gid, ...enrolment, createdAt: now })
      .onConflictDoNothing(),
  ]);
  if (!hasChanged(results.at(-1))) throw new ApiError('SECOND_FACTOR_ENROLLED');
}

/**
 * Enrols the factor of the code with its recovery codes, and signs in.
 * @throws ApiError SECOND_FACTOR_ENROLLED, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function finishSetUp(
  context: SecondFactorContext,
  code: string,
): Promise<{ login: LoginResponse; recoveryCodes: string[] }> {
  await requireNoFactor(context);
  const enrolment = await withinAttempts(context, () => enrolmentBy(context, code));
  const recovery = await newRecoveryCodes(context.db, context.preAuth.user);
  const login = await completeSecondStep(context, enrolment.method, (person) =>
    enrol(context, person, enrolment, recovery),
  );
  return { login, recoveryCodes: recovery.codes };
}
