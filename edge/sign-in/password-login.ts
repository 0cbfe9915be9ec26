import { isPassword } from '../crypto/password-hash.ts';
import { ApiError } from '../errors.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforceLimit, refund } from '../rate-limits/limiter-client.ts';
import { accountByEmail } from './accounts.ts';
import { completeFirstFactor, type LoginResponse, recordFailedSignIn } from './first-factor.ts';
import { tokensForPassword } from './identity-provider.ts';
import type { Person } from './person.ts';
import type { SignInContext } from './sign-in-context.ts';

/**
 * Checks a password within its limits. An attempt is counted before the password is checked, so that concurrent guesses
 * are counted too; a right one, and one that could not be checked, is refunded.
 * @param check returns null for a wrong password
 * @throws ApiError RATE_LIMITED, LIMITER_UNAVAILABLE, and what `check` throws
 */
export async function withinPasswordAttempts<T>(
  { env, client }: SignInContext,
  email: string,
  check: () => Promise<T | null>,
): Promise<T | null> {
  const buckets = [bucketOf.wrongPasswordFrom(client.ip), bucketOf.wrongPassword(email)];
  for (const bucket of buckets) await enforceLimit(env, bucket);
  const refundAll = () => Promise.all(buckets.map((bucket) => refund(env, bucket)));
  const value = await check().catch(async (error: unknown) => {
    await refundAll();
    throw error;
  });
  if (value !== null) await refundAll();
  return value;
}

/**
 * Password login (specification 3.3).
 * @throws ApiError CREDENTIALS_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE
 */
export async function logIn(context: SignInContext, email: string, password: string): Promise<LoginResponse> {
  const person = await withinPasswordAttempts(context, email, () => authenticate(context, email, password));
  if (!person) {
    const identify = async () => (await accountByEmail(context.db, email))[0];
    recordFailedSignIn(context, identify, { first_factor: 'password' });
    throw new ApiError('CREDENTIALS_WRONG');
  }
  return completeFirstFactor(context, person, 'password');
}

/** The password of an account is never sent to the provider. */
async function authenticate(context: SignInContext, email: string, password: string): Promise<Person | null> {
  const [account] = await accountByEmail(context.db, email);
  const isRight = await isPassword(password, account?.passwordHash ?? null, context.settings.PASSWORD_COST);
  if (account) return isRight ? { account } : null;
  if (!context.settings.IDP_PASSWORD_GRANT) return null;
  const tokens = await tokensForPassword(context, email, password);
  return tokens && { tokens };
}
