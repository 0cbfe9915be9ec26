import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, refund } from '../rate-limits/limiter-client.ts';
import type { SignInContext } from './sign-in-context.ts';

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
