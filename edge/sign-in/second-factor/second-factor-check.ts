import { and, eq, lt } from 'drizzle-orm';
import { type AppContext, databaseOf } from '../../app-env.ts';
import { unseal } from '../../credentials/seal.ts';
import { secondFactors } from '../../database/account-schema.ts';
import { ApiError } from '../../errors.ts';
import { readSettings } from '../../settings.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import { type SecondFactorRow, sealedSecretPlace, secondFactorOf } from './second-factor.ts';
import { judged } from './second-factor-attempts.ts';
import { isEnrolled } from './second-factor-enrolment.ts';
import { isMailedCode } from './second-factor-mail.ts';
import type { SecondFactorMethod } from './second-factor-method.ts';
import { afterSecondStep } from './second-step.ts';
import { stepOf } from './totp.ts';

/** Whether the code is the app's and new: of two who come with the same one, the one whose update counts. */
async function isNewAppCode(c: AppContext, factor: SecondFactorRow, code: string): Promise<boolean> {
  const { issuer, gid, keyId, sealedSecret } = factor;
  if (keyId === null || sealedSecret === null) return false;
  const { CREDENTIAL_KEYS } = readSettings(c.env);
  const secret = await unseal(CREDENTIAL_KEYS, sealedSecretPlace(factor), { keyId, sealed: sealedSecret });
  const step = stepOf(secret, code, new Date());
  if (step === null) return false;
  const { meta } = await databaseOf(c)
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
  (c: AppContext, factor: SecondFactorRow, code: string) => Promise<boolean>
> = {
  totp: isNewAppCode,
  email: (c, _factor, code) => isMailedCode(c, code),
};

/**
 * Signs in whoever has a code of the enrolled factor.
 * @throws ApiError FORBIDDEN (`required`) when none is, CODE_WRONG, UNAUTHENTICATED, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function checkSecondFactor(c: AppContext, code: string): Promise<LoginResponse> {
  const { user, step } = c.var.preAuth;
  const [factor] = await secondFactorOf(databaseOf(c), user);
  // A token for the set-up lasts an hour; a factor that was enrolled meanwhile takes a new first step.
  if (step !== 'verify' || !factor) throw new ApiError('FORBIDDEN', { required: 'second factor' });
  await judged(c, async () => (await CHECKS[factor.method](c, factor, code)) || null);
  return afterSecondStep(c, factor.method);
}

/**
 * Signs in without a second factor, where none is enrolled and none is demanded.
 * @throws ApiError SECOND_FACTOR_REQUIRED, UNAUTHENTICATED
 */
export async function skipSecondFactor(c: AppContext): Promise<LoginResponse> {
  const { TWO_FACTOR } = readSettings(c.env);
  if (TWO_FACTOR === 'required' || (await isEnrolled(c))) throw new ApiError('SECOND_FACTOR_REQUIRED');
  return afterSecondStep(c, 'skipped');
}
