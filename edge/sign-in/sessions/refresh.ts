import { decodeJwt } from 'jose';
import { type AppContext, actorAs, databaseOf } from '../../app-env.ts';
import { readSettings } from '../../settings.ts';
import type { AccountRow } from '../accounts/accounts.ts';
import { renewTokens } from '../provider/identity-provider.ts';
import { renewSession, type Tokens } from './sessions.ts';

/** Whether the gateway issued it, by its own word: a token that lies here is refused by whoever is asked. */
export function isOwnRefreshToken(c: AppContext, refreshToken: string): boolean {
  try {
    return decodeJwt(refreshToken).iss === readSettings(c.env).BASE_URL;
  } catch {
    return false;
  }
}

/**
 * New tokens for a refresh token, from whoever issued it.
 * @throws ApiError REFRESH_TOKEN_WRONG, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export function refresh(c: AppContext, refreshToken: string): Promise<Tokens> {
  if (!isOwnRefreshToken(c, refreshToken)) return renewTokens(c, refreshToken);
  // Who presents a stolen token is not known; whose it was is.
  const about = ({ email, tenantId }: AccountRow) => actorAs(c, { userId: null, email, tenantId });
  return renewSession(databaseOf(c), readSettings(c.env), refreshToken, { about, now: new Date() });
}
