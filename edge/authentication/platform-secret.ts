import { rejected } from './rejection.ts';

const digest = (text: string) => crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));

/**
 * Digests have one length, and comparing them in constant time tells nothing of how much of a guess was right.
 * @throws ApiError UNAUTHENTICATED
 */
export async function checkPlatformSecret(authorization: string | null, secret: string): Promise<void> {
  const [given, wanted] = await Promise.all([digest(authorization ?? ''), digest(`Bearer ${secret}`)]);
  if (!crypto.subtle.timingSafeEqual(given, wanted)) throw rejected('platform_secret_wrong');
}
