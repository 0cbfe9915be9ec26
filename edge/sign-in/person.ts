import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { identityOf } from '../authentication/authenticate.ts';
import type { Identity } from '../authentication/principal.ts';
import type { AccountRow } from '../database/people-schema.ts';
import { openSession } from './sessions.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

/** A person who signs in: a local account, or a user of the provider with the tokens it issued. */
export type Person = { account: AccountRow } | { tokens: Tokens };

/**
 * The identity in an access token of this person.
 * @returns or UNAUTHENTICATED, KEYS_UNAVAILABLE for tokens of the provider
 */
export async function identityOfPerson(
  { settings, waitUntil }: SignInContext,
  person: Person,
  now: Date,
): Promise<Result<Identity, Failure>> {
  if ('tokens' in person) return identityOf(person.tokens.accessToken, { settings, now, waitUntil });
  const { id, email, role, tenantId } = person.account;
  // Tokens have a resolution of one second.
  const seconds = Math.floor(now.getTime() / 1000);
  return ok({
    issuer: settings.BASE_URL,
    gid: id,
    email,
    role,
    scopes: [],
    service: settings.SERVICE_NAME,
    tenantId,
    issuedAt: new Date(seconds * 1000),
    expiresAt: new Date((seconds + settings.JWT_ACCESS_TTL_SECONDS) * 1000),
  });
}

/** The tokens of the provider, or those of a new session of the account. @returns or UNAUTHENTICATED */
export async function tokensFor(
  { db, settings, client }: SignInContext,
  person: Person,
  now: Date,
): Promise<Result<Tokens, Failure>> {
  if ('tokens' in person) return ok(person.tokens);
  return openSession(db, settings, person.account, client, now);
}
