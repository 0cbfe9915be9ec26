import { notExists } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import { seal } from '../crypto/seal.ts';
import type { AuditActor } from '../database/column-types.ts';
import { insertIf } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type SecondFactorRow, secondFactors } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { sendsMail } from '../mail/mail.ts';
import { challengesOf } from './challenge.ts';
import { type LoginWithRecoveryCodes, userOfTenant } from './first-factor.ts';
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

const forbidden = (required: string): Failure => ({ code: 'FORBIDDEN', fields: { required } });

/**
 * Mails a code for the pre-auth token. A new code replaces the previous one.
 * @returns when the code expires, in Unix milliseconds
 *   or FORBIDDEN (`required`), SECOND_FACTOR_ENROLLED, MAIL_UNAVAILABLE
 */
export async function mailCode(context: SecondFactorContext): Promise<Result<number, Failure>> {
  const { user, step, jti } = context.preAuth;
  if (isSecondMail(context)) return fail(forbidden('first factor password'));
  const [enrolled] = await secondFactorOf(context.db, user);
  if (step === 'setup' && enrolled) return fail({ code: 'SECOND_FACTOR_ENROLLED' });
  if (step === 'verify' && enrolled?.method !== 'email') return fail(forbidden('second factor email'));
  if (!sendsMail(context.settings)) return fail({ code: 'MAIL_UNAVAILABLE' });
  const address = addressOf(context);
  const request = { kind: 'second_factor', challengeId: jti, address, mail: 'code' } as const;
  return ok((await challengesOf(context.env, address).start(request)).expiresAt);
}

/** Returns whether the code is the last one mailed for this pre-auth token. A right code is consumed. */
export async function isMailedCode(context: SecondFactorContext, code: string): Promise<boolean> {
  if (isSecondMail(context)) return false;
  const submission = { challengeId: context.preAuth.jti, kinds: ['second_factor' as const], code };
  return (await challengesOf(context.env, addressOf(context)).verify(submission)).ok;
}

const secretOf = ({ settings, preAuth }: SecondFactorContext) =>
  setUpSecret(settings.CREDENTIAL_KEYS, preAuth.jti);

/** True as well for a token of the step `verify`, which was issued because a factor was enrolled. */
export async function isEnrolled({ db, preAuth }: SecondFactorContext): Promise<boolean> {
  const { step, user } = preAuth;
  return step === 'verify' || (await secondFactorOf(db, user)).length > 0;
}

/**
 * The secret for an authenticator app. It is the same for each call with one pre-auth token.
 * @returns or SECOND_FACTOR_ENROLLED
 */
export async function startSetUp(
  context: SecondFactorContext,
): Promise<Result<{ secret: string; uri: string }, Failure>> {
  if (await isEnrolled(context)) return fail({ code: 'SECOND_FACTOR_ENROLLED' });
  const secret = await secretOf(context);
  const { settings, preAuth } = context;
  return ok({ secret, uri: totpUri(secret, { issuer: settings.SERVICE_NAME, label: preAuth.user.email }) });
}

type Enrolment = Pick<SecondFactorRow, 'method' | 'keyId' | 'sealedSecret' | 'lastStep'>;

/**
 * The factor that a code enrols: the app that generated it or the mailbox it was sent to; null for a wrong
 * code.
 */
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

/**
 * The actor of an audit event of this step; null for a user without a tenant, who has no audit log.
 * @returns or UNAUTHENTICATED, KEYS_UNAVAILABLE
 */
export async function auditActorOf(
  context: SecondFactorContext,
  person: Person,
  now: Date,
): Promise<Result<AuditActor | null, Failure>> {
  const identity = await identityOfPerson(context, person, now);
  if (!identity.ok) return identity;
  const user = await userOfTenant(context, identity.value, now);
  return user.ok ? ok(user.value && actorWith(context.client, user.value)) : user;
}

/** @returns or SECOND_FACTOR_ENROLLED when a concurrent request has enrolled a factor first */
async function enrol(
  context: SecondFactorContext,
  person: Person,
  enrolment: Enrolment,
  recovery: NewRecoveryCodes,
): Promise<Result<null, Failure>> {
  const { db } = context;
  const now = context.now();
  const { issuer, gid } = context.preAuth.user;
  const { method } = enrolment;
  const actor = await auditActorOf(context, person, now);
  if (!actor.ok) return actor;
  const event =
    actor.value && auditEvent('second_factor.enrolled', actor.value, { metadata: { method } }, now);
  const factor = { issuer, gid, ...enrolment, createdAt: now };
  const enrolled = await guardedWrite(db, {
    decides: (isAllowed) => insertIf(db, secondFactors, factor, isAllowed),
    require: [[notExists(secondFactorOf(db, { issuer, gid })), 'SECOND_FACTOR_ENROLLED']],
    rest: (isAllowed) => [
      ...(event ? [insertIf(db, auditEvents, event, isAllowed)] : []),
      ...recovery.statements(isAllowed),
    ],
  });
  return enrolled.ok ? ok(null) : enrolled;
}

/**
 * Enrols the factor of the code with its recovery codes, and signs in.
 * @returns or SECOND_FACTOR_ENROLLED, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function finishSetUp(
  context: SecondFactorContext,
  code: string,
): Promise<Result<LoginWithRecoveryCodes, Failure>> {
  if (await isEnrolled(context)) return fail({ code: 'SECOND_FACTOR_ENROLLED' });
  const enrolment = await withinAttempts(context, () => enrolmentBy(context, code));
  if (!enrolment.ok) return enrolment;
  const recovery = await newRecoveryCodes(context.db, context.preAuth.user);
  const login = await completeSecondStep(context, enrolment.value.method, (person) =>
    enrol(context, person, enrolment.value, recovery),
  );
  return login.ok ? ok({ ...login.value, recovery_codes: recovery.codes }) : login;
}
