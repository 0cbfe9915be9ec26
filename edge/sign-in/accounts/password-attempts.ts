import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit } from '../../rate-limits/enforce-limit.ts';
import type { SignInContext } from '../sign-in-context.ts';

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
