import { notExists } from 'drizzle-orm';
import { type AppContext, actorAs, databaseOf } from '../../app-env.ts';
import type { AuditActor } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { seal } from '../../credentials/seal.ts';
import { secondFactors } from '../../database/account-schema.ts';
import { changesOf, inOneBatch, insertIf } from '../../database/database.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import { readSettings } from '../../settings.ts';
import { materialize } from '../../tenancy/materialize.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import { identityOfPerson, type Person } from '../sessions/person.ts';
import { type SecondFactorRow, sealedSecretPlace, secondFactorOf } from './second-factor.ts';
import { judged } from './second-factor-attempts.ts';
import { isMailedCode } from './second-factor-mail.ts';
import { afterSecondStep } from './second-step.ts';
import { setUpSecret, stepOf, totpUri } from './totp.ts';

const secretOf = (c: AppContext) => setUpSecret(readSettings(c.env).CREDENTIAL_KEYS, c.var.preAuth.jti);

/** Also true of a token for the other step: it was given because a factor is enrolled. */
export async function isEnrolled(c: AppContext): Promise<boolean> {
  const { step, user } = c.var.preAuth;
  return step === 'verify' || (await secondFactorOf(databaseOf(c), user)).length > 0;
}

/** @throws ApiError SECOND_FACTOR_ENROLLED */
async function refuseEnrolled(c: AppContext): Promise<void> {
  if (await isEnrolled(c)) throw new ApiError('SECOND_FACTOR_ENROLLED');
}

/**
 * What an app needs to make codes; the same each time with one pre-auth token.
 * @throws ApiError SECOND_FACTOR_ENROLLED
 */
export async function startSetUp(c: AppContext): Promise<{ secret: string; uri: string }> {
  await refuseEnrolled(c);
  const secret = await secretOf(c);
  const { SERVICE_NAME } = readSettings(c.env);
  return { secret, uri: totpUri(secret, { issuer: SERVICE_NAME, label: c.var.preAuth.user.email }) };
}

type Enrolment = Pick<SecondFactorRow, 'method' | 'keyId' | 'sealedSecret' | 'lastStep'>;

/** What a code enrols: the app that made it, or the mailbox it was sent to; null: it is of neither. */
async function enrolmentBy(c: AppContext, code: string): Promise<Enrolment | null> {
  const secret = await secretOf(c);
  const lastStep = stepOf(secret, code, new Date());
  if (lastStep !== null) {
    const { CREDENTIAL_KEYS } = readSettings(c.env);
    const { keyId, sealed } = await seal(CREDENTIAL_KEYS, sealedSecretPlace(c.var.preAuth.user), secret);
    return { method: 'totp', keyId, sealedSecret: sealed, lastStep };
  }
  if (!(await isMailedCode(c, code))) return null;
  return { method: 'email', keyId: null, sealedSecret: null, lastStep: null };
}

/** Null for whoever belongs to no tenant, and so to no audit log. */
async function enroller(c: AppContext, person: Person, now: Date): Promise<AuditActor | null> {
  const identity = await identityOfPerson(c, person, now);
  const { tenantId } = identity;
  return tenantId === null ? null : actorAs(c, await materialize(c.env.DB, { ...identity, tenantId }, now));
}

/** @throws ApiError SECOND_FACTOR_ENROLLED for whoever comes second */
async function enrol(c: AppContext, person: Person, enrolment: Enrolment): Promise<void> {
  const db = databaseOf(c);
  const now = new Date();
  const { issuer, gid } = c.var.preAuth.user;
  const { method } = enrolment;
  const actor = await enroller(c, person, now);
  const event = actor && auditEvent('second_factor.enrolled', actor, { metadata: { method } }, now);
  const isFirst = notExists(secondFactorOf(db, { issuer, gid }));
  const answers = await inOneBatch(db, [
    ...(event ? [insertIf(db, auditEvents, event, isFirst)] : []),
    db
      .insert(secondFactors)
      .values({ issuer, gid, ...enrolment, createdAt: now })
      .onConflictDoNothing(),
  ]);
  if (changesOf(answers.at(-1)) === 0) throw new ApiError('SECOND_FACTOR_ENROLLED');
}

/**
 * Enrols the factor that the code is of, and signs in.
 * @throws ApiError SECOND_FACTOR_ENROLLED, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function finishSetUp(c: AppContext, code: string): Promise<LoginResponse> {
  await refuseEnrolled(c);
  const enrolment = await judged(c, () => enrolmentBy(c, code));
  return afterSecondStep(c, enrolment.method, (person) => enrol(c, person, enrolment));
}
