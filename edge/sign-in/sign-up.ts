import { and, eq } from 'drizzle-orm';
import { ownerInvitations } from '../database/people-schema.ts';
import type { Settings } from '../settings.ts';
import type { SignInContext } from './sign-in-context.ts';

/** Whether members of a tenant can invite people. */
export const isInvitable = ({ SIGN_UP }: Settings): boolean => SIGN_UP !== 'off';

/**
 * Whether the code of an invitation may make an account. Only the operator's invitations are accepted while
 * sign-ups are off. Everything else gets one response, whether there is such an invitation or not.
 */
export async function isInvitationOpen(
  { db, settings }: SignInContext,
  { challengeId, email }: { challengeId: string; email: string },
): Promise<boolean> {
  if (isInvitable(settings)) return true;
  const isIt = and(eq(ownerInvitations.id, challengeId), eq(ownerInvitations.email, email));
  const found = await db.select({ id: ownerInvitations.id }).from(ownerInvitations).where(isIt);
  return found.length > 0;
}
