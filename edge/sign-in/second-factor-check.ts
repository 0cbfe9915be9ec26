import { and, eq, lt } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, type Result } from '../../shared/result.ts';
import { unseal } from '../crypto/seal.ts';
import type { SecondFactorMethod } from '../database/column-types.ts';
import { type SecondFactorRow, secondFactors } from '../database/people-schema.ts';
import type { LoginResponse } from './first-factor.ts';
import { type SecondFactorContext, secondFactorOf, secretSealContext, stepOf } from './second-factor.ts';
import { isEnrolled, isMailedCode } from './second-factor-enrolment.ts';
import { type BeforeTokens, completeSecondStep, withinAttempts } from './second-step.ts';

/** Returns whether the code is right and unused. If two requests submit it, the one that updates the row succeeds. */
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
 * @returns or FORBIDDEN (`required`) when none is enrolled, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED,
 *   LIMITER_UNAVAILABLE
 */
export async function checkSecondFactor(
  context: SecondFactorContext,
  code: string,
  beforeTokens?: BeforeTokens,
): Promise<Result<LoginResponse, Failure>> {
  const { user, step } = context.preAuth;
  const [factor] = await secondFactorOf(context.db, user);
  // A token for an enrolment lasts an hour. A factor that was enrolled meanwhile requires a new first step.
  if (step !== 'verify' || !factor) return fail({ code: 'FORBIDDEN', fields: { required: 'second factor' } });
  const check = async () => (await CHECKS[factor.method](context, factor, code)) || null;
  const checked = await withinAttempts(context, check);
  if (!checked.ok) return checked;
  return completeSecondStep(context, factor.method, beforeTokens);
}

/**
 * Signs in without a second factor if none is enrolled and none is required.
 * @returns or SECOND_FACTOR_REQUIRED, UNAUTHENTICATED
 */
export async function skipSecondFactor(
  context: SecondFactorContext,
): Promise<Result<LoginResponse, Failure>> {
  const isRequired = context.settings.TWO_FACTOR === 'required' || (await isEnrolled(context));
  if (isRequired) return fail({ code: 'SECOND_FACTOR_REQUIRED' });
  return completeSecondStep(context, 'skipped');
}
