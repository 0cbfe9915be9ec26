import { notExists } from 'drizzle-orm';
import { type AuditActor, actorWith } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { seal } from '../../credentials/seal.ts';
import { secondFactors } from '../../database/account-schema.ts';
import { hasChanged, inOneBatch, insertIf } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import { materialize } from '../../tenancy/materialize.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import { identityOfPerson, type Person } from '../sessions/person.ts';
import { type NewRecoveryCodes, newRecoveryCodes } from './recovery-codes.ts';
import {
  type SecondFactorContext,
  type SecondFactorRow,
  secondFactorOf,
  secretSealContext,
} from './second-factor.ts';
import { withinAttempts } from './second-factor-attempts.ts';
import { isMailedCode } from './second-factor-mail.ts';
import { completeSecondStep } from './second-step.ts';
import { setUpSecret, stepOf, totpUri } from './totp.ts';

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
