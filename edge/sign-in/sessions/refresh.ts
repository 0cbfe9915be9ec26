import { decodeJwt } from 'jose';
import { actorWith } from '../../audit/actor.ts';
import type { Settings } from '../../settings.ts';
import type { AccountRow } from '../accounts/accounts.ts';
import { renewTokens } from '../provider/identity-provider.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { renewSession, type Tokens } from './sessions.ts';

/** Whether the token names the gateway as its issuer. The issuer is verified later, by the gateway or the provider. */
export function isOwnRefreshToken({ BASE_URL }: Settings, refreshToken: string): boolean {
  try {
    return decodeJwt(refreshToken).iss === BASE_URL;
  } catch {
    return false;
  }
}

/**
 * New tokens for a refresh token, from its issuer.
 * @param reuse of a token of the gateway; see `renewSession`
 * @throws ApiError REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export function refresh(
  context: SignInContext,
  refreshToken: string,
  reuse: { reusableForMs?: number } = {},
): Promise<Tokens> {
  const { db, settings, client } = context;
  if (!isOwnRefreshToken(settings, refreshToken)) return renewTokens(context, refreshToken);
  // The user of a stolen token is known, the client that presents it is not.
  const actorOf = ({ email, tenantId }: AccountRow) => actorWith(client, { userId: null, email, tenantId });
  return renewSession(db, settings, refreshToken, { actorOf, now: context.now(), ...reuse });
}
