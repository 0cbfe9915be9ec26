import { and, eq, exists } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { auditEvent } from '../audit/audit-event.ts';
import { inOneBatch, type Statement } from '../database/database.ts';
import { secondFactors } from '../database/people-schema.ts';
import { auditEvents } from '../database/schema.ts';
import type { LoginResponse, LoginWithRecoveryCodes } from './first-factor.ts';
import type { Person } from './person.ts';
import {
  deleteRecoveryCodes,
  newRecoveryCodes,
  type SecondFactorContext,
  secondFactorOf,
  useRecoveryCode,
} from './second-factor.ts';
import { checkSecondFactor } from './second-factor-check.ts';
import { auditActorOf } from './second-factor-enrolment.ts';
import { completeSecondStep, withinAttempts } from './second-step.ts';

/** Runs the statements with an audit event, in one batch. A user without a tenant has no audit log. */
async function runAudited(
  context: SecondFactorContext,
  person: Person,
  name: 'second_factor.removed' | 'recovery_codes.replaced',
  statements: Statement[],
): Promise<Result<null, Failure>> {
  const { db } = context;
  const now = context.now();
  const actor = await auditActorOf(context, person, now);
  if (!actor.ok) return actor;
  const event = actor.value && auditEvent(name, actor.value, {}, now);
  await inOneBatch(db, [...(event ? [db.insert(auditEvents).values(event)] : []), ...statements]);
  return ok(null);
}

/**
 * Signs in with a recovery code in place of the enrolled factor.
 * @param removesFactor whether the factor is lost, so that it is removed with its codes
 * @returns or FORBIDDEN (`required`) when no factor is enrolled, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED,
 *   LIMITER_UNAVAILABLE
 */
export async function recover(
  context: SecondFactorContext,
  code: string,
  removesFactor: boolean,
): Promise<Result<LoginResponse, Failure>> {
  const { db } = context;
  const { user, step } = context.preAuth;
  const [factor] = await secondFactorOf(db, user);
  if (step !== 'verify' || !factor) return fail({ code: 'FORBIDDEN', fields: { required: 'second factor' } });
  const checked = await withinAttempts(context, async () => (await useRecoveryCode(db, user, code)) || null);
  if (!checked.ok) return checked;
  const isUsers = and(eq(secondFactors.issuer, user.issuer), eq(secondFactors.gid, user.gid));
  const remove = (person: Person) =>
    runAudited(context, person, 'second_factor.removed', [
      db.delete(secondFactors).where(isUsers),
      deleteRecoveryCodes(db, user),
    ]);
  return completeSecondStep(context, 'recovery_code', removesFactor ? remove : undefined);
}

/**
 * Signs in with a code of the enrolled factor, and replaces the recovery codes.
 * @returns or the failures of `checkSecondFactor`
 */
export async function replaceRecoveryCodes(
  context: SecondFactorContext,
  code: string,
): Promise<Result<LoginWithRecoveryCodes, Failure>> {
  const { db, preAuth } = context;
  const { codes, statements } = await newRecoveryCodes(db, preAuth.user);
  const login = await checkSecondFactor(context, code, (person) => {
    const isEnrolled = exists(secondFactorOf(db, preAuth.user));
    return runAudited(context, person, 'recovery_codes.replaced', statements(isEnrolled));
  });
  return login.ok ? ok({ ...login.value, recovery_codes: codes }) : login;
}
