import { rejected } from './rejection.ts';

const digest = (text: string) => crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));

/**
 * Compares digests of equal length in constant time, so that timing does not reveal a matching prefix.
 * @throws ApiError UNAUTHENTICATED
 */
export async function checkPlatformSecret(authorization: string | null, secret: string): Promise<void> {
  const [given, expected] = await Promise.all([digest(authorization ?? ''), digest(`Bearer ${secret}`)]);
  if (!crypto.subtle.timingSafeEqual(given, expected)) throw rejected('platform_secret_wrong');
}
