import { and, eq, lt } from 'drizzle-orm';
import { unseal } from '../crypto/seal.ts';
import type { SecondFactorMethod } from '../database/column-types.ts';
import { type SecondFactorRow, secondFactors } from '../database/people-schema.ts';
import { ApiError } from '../errors.ts';
import type { LoginResponse } from './first-factor.ts';
import type { Person } from './person.ts';
import { type SecondFactorContext, secondFactorOf, secretSealContext, stepOf } from './second-factor.ts';
import { isEnrolled, isMailedCode } from './second-factor-enrolment.ts';
import { completeSecondStep, withinAttempts } from './second-step.ts';

/** Whether the code is right and unused. If two requests submit it, the one that updates the row succeeds. */
async function isNewAppCode(
  { settings, db, now }: SecondFactorContext,
  factor: SecondFactorRow,
  code: string,
): Promise<boolean> {
  const { issuer, gid, keyId, sealedSecret } = factor;
  if (keyId === null || sealedSecret === null) return false;
  const sealed = { keyId, sealed: sealedSecret };
  const secret = await unseal(settings.CREDENTIAL_KEYS, secretSealContext(factor), sealed);
  const step = stepOf(secret, code, now());
  if (step === null) return false;
  const { meta } = await db
    .update(secondFactors)
    .set({ lastStep: step })
    .where(
      and(eq(secondFactors.issuer, issuer), eq(secondFactors.gid, gid), lt(secondFactors.lastStep, step)),
    )
    .run();
  return meta.changes === 1;
}

const CHECKS: Record<
  SecondFactorMethod,
  (context: SecondFactorContext, factor: SecondFactorRow, code: string) => Promise<boolean>
> = {
  totp: isNewAppCode,
  email: (context, _factor, code) => isMailedCode(context, code),
};

/**
 * Signs in with a code of the enrolled factor.
 * @param beforeTokens runs after the code was right
 * @throws ApiError FORBIDDEN (`required`) when none is enrolled, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED,
 *   LIMITER_UNAVAILABLE
 */
export async function checkSecondFactor(
  context: SecondFactorContext,
  code: string,
  beforeTokens?: (person: Person) => Promise<void>,
): Promise<LoginResponse> {
  const { user, step } = context.preAuth;
  const [factor] = await secondFactorOf(context.db, user);
  // A token for an enrolment lasts an hour. A factor that was enrolled meanwhile requires a new first step.
  if (step !== 'verify' || !factor) throw new ApiError('FORBIDDEN', { required: 'second factor' });
  await withinAttempts(context, async () => (await CHECKS[factor.method](context, factor, code)) || null);
  return completeSecondStep(context, factor.method, beforeTokens);
}

/**
 * Signs in without a second factor if none is enrolled and none is required.
 * @throws ApiError SECOND_FACTOR_REQUIRED, UNAUTHENTICATED
 */
export async function skipSecondFactor(context: SecondFactorContext): Promise<LoginResponse> {
  const isRequired = context.settings.TWO_FACTOR === 'required' || (await isEnrolled(context));
  if (isRequired) throw new ApiError('SECOND_FACTOR_REQUIRED');
  return completeSecondStep(context, 'skipped');
}
