import { type AppContext, databaseOf } from '../../app-env.ts';
import { identityOf } from '../../authentication/authenticate.ts';
import type { Identity } from '../../authentication/principal.ts';
import { readSettings } from '../../settings.ts';
import type { AccountRow } from '../accounts/accounts.ts';
import { openSession, type Tokens } from './sessions.ts';

/** Who signs in: an account of ours, or a user of the provider with the tokens it gave. */
export type Person = { account: AccountRow } | { tokens: Tokens };

/** What a token of this person says. @throws ApiError UNAUTHENTICATED, KEYS_UNAVAILABLE for the provider's */
export async function identityOfPerson(c: AppContext, person: Person, now: Date): Promise<Identity> {
  const settings = readSettings(c.env);
  if ('tokens' in person) {
    const waitUntil = (work: Promise<unknown>) => c.executionCtx.waitUntil(work);
    return identityOf(person.tokens.accessToken, { settings, now, waitUntil });
  }
  const { id, email, role, tenantId } = person.account;
  return {
    issuer: settings.BASE_URL,
    gid: id,
    email,
    role,
    scopes: [],
    service: settings.SERVICE_NAME,
    tenantId,
    // A token says whole seconds.
    issuedAt: new Date(Math.floor(now.getTime() / 1000) * 1000),
  };
}

/** The tokens that this person goes on with. */
export async function tokensFor(c: AppContext, person: Person, now: Date): Promise<Tokens> {
  if ('tokens' in person) return person.tokens;
  return openSession(databaseOf(c), readSettings(c.env), person.account, now);
}
