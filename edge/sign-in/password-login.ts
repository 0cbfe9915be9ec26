import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { isPassword } from '../crypto/password-hash.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, refund } from '../rate-limits/limiter-client.ts';
import { accountByEmail, findAccount } from './accounts.ts';
import { completeFirstFactor, type LoginResponse, recordFailedSignIn } from './first-factor.ts';
import type { Person } from './person.ts';
import { tokensForPassword } from './provider-tokens.ts';
import type { SignInContext } from './sign-in-context.ts';
import { requireOtherWays } from './sign-up.ts';

/**
 * Checks a password within its limits. An attempt is counted before the password is checked, so that
 * concurrent guesses are counted too; a right one, and one that could not be checked, is refunded.
 * @param check returns null for a wrong password
 * @returns or RATE_LIMITED, LIMITER_UNAVAILABLE, and the failures of `check`
 */
export async function withinPasswordAttempts<T>(
  { env, client }: SignInContext,
  email: string,
  check: () => Promise<Result<T | null, Failure>>,
): Promise<Result<T | null, Failure>> {
  const buckets = [bucketOf.wrongPasswordFrom(client.ip), bucketOf.wrongPassword(email)];
  for (const bucket of buckets) {
    const counted = await enforce(env, bucket);
    if (!counted.ok) return counted;
  }
  const refundAll = () => Promise.all(buckets.map((bucket) => refund(env, bucket)));
  const checked = await check().catch(async (error: unknown) => {
    await refundAll();
    throw error;
  });
  if (!checked.ok || checked.value !== null) await refundAll();
  return checked;
}

/**
 * Password login (specification 3.3).
 * @returns or SSO_REQUIRED, CREDENTIALS_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE
 */
export async function logIn(
  context: SignInContext,
  email: string,
  password: string,
): Promise<Result<LoginResponse, Failure>> {
  const other = await requireOtherWays(context, email);
  if (!other.ok) return other;
  const person = await withinPasswordAttempts(context, email, () => authenticate(context, email, password));
  if (!person.ok) return person;
  if (person.value) return completeFirstFactor(context, person.value, 'password');
  const identify = () => findAccount(context.db, email);
  recordFailedSignIn(context, identify, { first_factor: 'password' });
  return fail({ code: 'CREDENTIALS_WRONG' });
}

/** The password of an account is never sent to the provider. */
async function authenticate(
  context: SignInContext,
  email: string,
  password: string,
): Promise<Result<Person | null, Failure>> {
  const [account] = await accountByEmail(context.db, email);
  const isRight = await isPassword(password, account?.passwordHash ?? null, context.settings.PASSWORD_COST);
  if (!isRight.ok) return isRight;
  if (account) return ok(isRight.value ? { account } : null);
  if (!context.settings.IDP_PASSWORD_GRANT) return ok(null);
  const tokens = await tokensForPassword(context, email, password);
  return tokens.ok ? ok(tokens.value && { tokens: tokens.value }) : tokens;
}
