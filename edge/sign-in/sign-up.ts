import { and, eq } from 'drizzle-orm';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { invitations, ownerInvitations } from '../database/people-schema.ts';
import { isInVerifiedDomain, providerOfAddress } from '../identity-providers/domains.ts';
import type { SignInContext } from './sign-in-context.ts';

/** Returns whether members of a tenant can invite this address. */
export const isInvitable = async (
  { db, settings }: SignInContext,
  email: string,
  tenantId: string,
): Promise<boolean> => settings.SIGN_UP !== 'off' || isInVerifiedDomain(db, email, tenantId);

/**
 * Returns whether the code of an invitation may make an account. While sign-ups are off, only the operator's
 * invitations and those to a verified domain of the tenant are accepted. Every other address gets one
 * response, whether it was invited or not.
 */
export async function isInvitationOpen(
  { db, settings }: SignInContext,
  { challengeId: id, email }: { challengeId: string; email: string },
): Promise<boolean> {
  if (settings.SIGN_UP !== 'off') return true;
  const [[byOperator], [byMember]] = (await Promise.all(
    [ownerInvitations, invitations].map((table) =>
      db
        .select({ tenantId: table.tenantId })
        .from(table)
        .where(and(eq(table.id, id), eq(table.email, email))),
    ),
  )) as [{ tenantId: string }[], { tenantId: string }[]];
  return byOperator !== undefined || isInVerifiedDomain(db, email, byMember?.tenantId);
}

/**
 * Refuses an address whose company requires its own provider, whether the address has an account or not.
 * @returns or SSO_REQUIRED
 */
export async function requireOtherWays(
  { db }: Pick<SignInContext, 'db'>,
  email: string,
): Promise<Result<null, Failure>> {
  const found = await providerOfAddress(db, email);
  return found?.required ? fail({ code: 'SSO_REQUIRED' }) : ok(null);
}
