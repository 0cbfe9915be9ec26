import { actorWith } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { auditEvents } from '../../database/schema.ts';
import type { SignInContext } from '../sign-in-context.ts';

/** The user whose sign-in was attempted; undefined when there is none. A user without a tenant has no audit log. */
type Identify = () => Promise<{ email: string; tenantId: string | null } | undefined>;

/**
 * Records a failed sign-in in the audit log of the user. It runs concurrently with the response, whose time would
 * otherwise reveal whether the user exists.
 */
export function recordFailedSignIn(
  { db, client, now, waitUntil }: SignInContext,
  identify: Identify,
  metadata: Record<string, unknown>,
): void {
  const record = async () => {
    const user = await identify();
    if (!user?.tenantId) return;
    const actor = actorWith(client, { userId: null, email: user.email, tenantId: user.tenantId });
    await db.insert(auditEvents).values(auditEvent('sign_in.failed', actor, { metadata }, now()));
  };
  waitUntil(record());
}
