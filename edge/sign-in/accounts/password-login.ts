import { type AppContext, connectingIp, databaseOf } from '../../app-env.ts';
import { ApiError } from '../../errors.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit } from '../../rate-limits/limit-requests.ts';
import { readSettings } from '../../settings.ts';
import { passwordTokens } from '../provider/identity-provider.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { afterFirstFactor } from '../sessions/first-factor.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import type { Person } from '../sessions/person.ts';
import { accountByEmail } from './accounts.ts';
import { isPassword } from './password-hash.ts';

/**
 * Password login (spec 3.3). Counted before it is looked at, so that guesses sent at once are counted too.
 * @throws ApiError CREDENTIALS_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE
 */
export async function logIn(c: AppContext, email: string, password: string): Promise<LoginResponse> {
  const charges = [bucketOf.wrongPasswordFrom(connectingIp(c)), bucketOf.wrongPassword(email)];
  for (const charge of charges) await enforceLimit(c, charge);
  const giveAllBack = () => Promise.all(charges.map((charge) => refund(c.env, charge)));
  const person = await personWith(c, email, password).catch(async (error: unknown) => {
    // Who could not be told whether it was right has not tried.
    await giveAllBack();
    throw error;
  });
  if (!person) {
    recordFailedSignIn(c, async () => (await accountByEmail(databaseOf(c), email))[0], {
      first_factor: 'password',
    });
    throw new ApiError('CREDENTIALS_WRONG');
  }
  await giveAllBack();
  return afterFirstFactor(c, person, 'password');
}

/** An address that has an account here is not asked for at the provider, which would be shown its passwords. */
async function personWith(c: AppContext, email: string, password: string): Promise<Person | null> {
  const [account] = await accountByEmail(databaseOf(c), email);
  const isRight = await isPassword(password, account?.passwordHash ?? null);
  if (account) return isRight ? { account } : null;
  if (!readSettings(c.env).IDP_PASSWORD_GRANT) return null;
  const tokens = await passwordTokens(c, email, password);
  return tokens && { tokens };
}
