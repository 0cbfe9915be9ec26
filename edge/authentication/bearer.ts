import { rejected } from './rejection.ts';
import { isSameText } from './same-text.ts';

/** Longest accepted token, in characters. Most have a few hundred; a pre-auth token can contain two others. */
const TOKEN_MAX = 8192;

/** The token of an `Authorization` header (RFC 6750 section 2.1). @throws ApiError UNAUTHENTICATED */
export function bearerToken(authorization: string | null): string {
  if (authorization === null) throw rejected('token_missing');
  const token = /^Bearer +(\S+)$/i.exec(authorization)?.[1];
  if (token === undefined) throw rejected('token_scheme_not_bearer');
  if (token.length > TOKEN_MAX) throw rejected('token_too_long');
  return token;
}

/** @throws ApiError UNAUTHENTICATED */
export async function checkPlatformSecret(authorization: string | null, secret: string): Promise<void> {
  if (!(await isSameText(authorization ?? '', `Bearer ${secret}`))) throw rejected('platform_secret_wrong');
}
