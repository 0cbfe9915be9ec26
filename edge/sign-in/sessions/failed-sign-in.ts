import { type AppContext, actorAs, databaseOf } from '../../app-env.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import { auditEvents } from '../../database/schema.ts';

/** Whom somebody tried to sign in as; undefined for nobody. Without a tenant there is no log to note it in. */
type Identify = () => Promise<{ email: string; tenantId: string | null } | undefined>;

/**
 * Notes in the audit log of whom it was tried for that a sign-in failed. Beside the answer, whose time would tell
 * whether there is such a user.
 */
export function recordFailedSignIn(
  c: AppContext,
  identify: Identify,
  metadata: Record<string, unknown>,
): void {
  const note = async () => {
    const user = await identify();
    if (!user?.tenantId) return;
    const actor = actorAs(c, { userId: null, email: user.email, tenantId: user.tenantId });
    await databaseOf(c)
      .insert(auditEvents)
      .values(auditEvent('sign_in.failed', actor, { metadata }, new Date()));
  };
  c.executionCtx.waitUntil(note());
}
