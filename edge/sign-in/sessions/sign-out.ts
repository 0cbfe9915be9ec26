import { type AppContext, actorOf, databaseOf } from '../../app-env.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { auditEvents } from '../../database/schema.ts';
import { revokeToken } from '../provider/identity-provider.ts';
import { isOwnRefreshToken } from './refresh.ts';
import { endSession, sessionNamed } from './sessions.ts';

/**
 * Ends the session that the bearer's token came with: of the gateway's own by what it says, of the provider's by the
 * refresh token, which is revoked there.
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function signOut(c: AppContext, refreshToken: string | undefined): Promise<void> {
  const { sessionId } = c.var.identity;
  const ended = (about: Parameters<typeof auditEvent>[2]) =>
    auditEvent('session.ended', actorOf(c), about, new Date());
  if (sessionId !== undefined) return endSession(databaseOf(c), sessionId, ended(sessionNamed(sessionId)));
  // A token of ours is shown to nobody else.
  if (refreshToken === undefined || isOwnRefreshToken(c, refreshToken)) return;
  await revokeToken(c, refreshToken);
  if (c.var.principal) await databaseOf(c).insert(auditEvents).values(ended({}));
}
