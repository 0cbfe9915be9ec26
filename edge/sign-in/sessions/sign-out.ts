import { actorWith } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import type { Identity, Principal } from '../../authentication/principal.ts';
import { auditEvents } from '../../database/schema.ts';
import { revokeToken } from '../provider/identity-provider.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { isOwnRefreshToken } from './refresh.ts';
import { endSession, sessionMetadata } from './sessions.ts';

interface Bearer {
  identity: Identity;
  /** Null without a tenant, and therefore without an audit log. */
  principal: Principal | null;
}

/**
 * Ends the session of the bearer's token. A session of the gateway is named by the token; a session of the provider
 * ends when its refresh token is revoked there.
 * @throws ApiError IDP_UNAVAILABLE
 */
export async function signOut(
  context: SignInContext,
  { identity, principal }: Bearer,
  refreshToken: string | undefined,
): Promise<void> {
  const { db, settings, client } = context;
  const { sessionId } = identity;
  const ended = (actor: Principal, details: Parameters<typeof auditEvent>[2]) =>
    auditEvent('session.ended', actorWith(client, actor), details, context.now());
  if (sessionId !== undefined) {
    if (!principal) throw new Error('an access token of the gateway names no tenant');
    await endSession(db, sessionId, ended(principal, sessionMetadata(sessionId)));
    return;
  }
  // A refresh token of the gateway is not sent to the provider.
  if (refreshToken === undefined || isOwnRefreshToken(settings, refreshToken)) return;
  await revokeToken(context, refreshToken);
  if (principal) await db.insert(auditEvents).values(ended(principal, {}));
}
