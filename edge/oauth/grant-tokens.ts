import { and, eq, gt, isNull, lt } from 'drizzle-orm';
import { calculatePKCECodeChallenge } from 'oauth4webapi';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent, type ClientDetails } from '../audit/audit-event.ts';
import { claimedMachineKind, signOwnToken, verifyOwnToken } from '../authentication/own-tokens.ts';
import { sha256 } from '../crypto/encoding.ts';
import { providerPeople } from '../database/company-schema.ts';
import { isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { type OAuthGrantRow, oauthGrants } from '../database/oauth-schema.ts';
import { users } from '../database/schema.ts';
import { sessions } from '../database/session-schema.ts';
import { machineRecord } from '../machines/authenticate-machine.ts';
import { confirmCompanySession } from '../sign-in/company-session.ts';
import { endSession, sessionMetadata } from '../sign-in/sessions.ts';
import type { SignInContext } from '../sign-in/sign-in-context.ts';
import { requireOtherWays } from '../sign-in/sign-up.ts';
import { readScopes, type Scope } from './authorization-request.ts';
import { endGrant, isUsable } from './grants.ts';

/**
 * Tokens of clients of the Model Context Protocol. A code is exchanged once. Each refresh token is valid once: after a theft
 * either the thief or the client is the second to use it, and the grant ends (RFC 9700 section 4.14). Requests that arrive
 * before the first one is answered are no second use: a client whose calls are refused together refreshes for each of them.
 */

const ACCESS_SECONDS = 900;

interface GrantTokens {
  accessToken: string;
  refreshToken: string;
  expiresInSeconds: number;
  scopes: readonly Scope[];
}

const invalidGrant = (description: string, reason = description): Failure => ({
  code: 'invalid_grant',
  fields: { error_description: description },
  reason,
});
const refused = (description: string, reason?: string) => fail(invalidGrant(description, reason));

const CODE_REFUSED =
  'The code is invalid, was used before or has expired, or belongs to another client, redirect_uri, code_verifier or resource. Sign in again.';
const REFRESH_REFUSED =
  'The refresh token is invalid, was used before or has expired, or the person has ended the sign-in. Sign in again.';

const seconds = (now: Date, more: number) => new Date(now.getTime() + more * 1000);

async function issue(
  { settings }: SignInContext,
  { id: sub, expiresAt: grantEnds }: OAuthGrantRow,
  refreshId: string,
  scopes: readonly Scope[],
  issuedAt: Date,
): Promise<GrantTokens> {
  const expiresAt = new Date(Math.min(seconds(issuedAt, ACCESS_SECONDS).getTime(), grantEnds.getTime()));
  const [accessToken, refreshToken] = await Promise.all([
    signOwnToken(settings, 'mcp', { sub, scp: [...scopes] }, { issuedAt, expiresAt }),
    signOwnToken(settings, 'mcp_refresh', { sub, jti: refreshId }, { issuedAt, expiresAt: grantEnds }),
  ]);
  const expiresInSeconds = Math.floor((expiresAt.getTime() - issuedAt.getTime()) / 1000);
  return { accessToken, refreshToken, expiresInSeconds, scopes };
}

/** The actor of what a client does with a code or a token that may be stolen: whose grant it is, and not who sent it. */
async function unprovenActor({ db, client }: SignInContext, { createdBy, tenantId }: OAuthGrantRow) {
  const [user] = await db.select({ email: users.email }).from(users).where(eq(users.id, createdBy));
  return actorWith(client, { userId: null, email: user?.email ?? '', tenantId });
}

interface CodeExchange {
  code: string;
  client_id: string;
  redirect_uri: string;
  code_verifier: string;
  resource?: string | undefined;
}

/**
 * The first tokens of a grant. A code that arrives with anything wrong ends its grant, because a code that is known to others
 * is worth nothing.
 * @returns or invalid_grant, IDP_UNAVAILABLE
 */
export async function exchangeCode(
  context: SignInContext,
  { code, client_id, redirect_uri, code_verifier, resource }: CodeExchange,
): Promise<Result<GrantTokens, Failure>> {
  const { db } = context;
  const now = context.now();
  const [row] = await db
    .select()
    .from(oauthGrants)
    .where(eq(oauthGrants.codeHash, await sha256(code)));
  if (!row) return refused(CODE_REFUSED, 'no such code');
  const end = async (reason: 'code_reused' | 'code_misused') => {
    await endGrant(db, row, reason, await unprovenActor(context, row), now);
    return refused(CODE_REFUSED, reason);
  };
  if (row.refreshId !== null) return end('code_reused');
  const isRight =
    client_id === row.clientId &&
    redirect_uri === row.redirectUri &&
    (resource === undefined || resource === row.resource) &&
    // The challenge is no secret: the browser has carried it.
    (await calculatePKCECodeChallenge(code_verifier)) === row.codeChallenge;
  if (!isRight) return end('code_misused');
  const confirmed = await confirmPerson(context, row);
  if (!confirmed.ok) return confirmed;
  const refreshId = crypto.randomUUID();
  const isUnused = and(
    eq(oauthGrants.id, row.id),
    isNull(oauthGrants.refreshId),
    gt(oauthGrants.codeExpiresAt, now),
  );
  const written = await guardedWrite(db, {
    decides: (isAllowed) => db.update(oauthGrants).set({ refreshId }).where(and(isUnused, isAllowed)),
    require: [[isThere(oauthGrants, isUnused), invalidGrant(CODE_REFUSED)]],
  });
  if (written.ok) return ok(await issue(context, row, refreshId, row.scopes, now));
  return row.codeExpiresAt > now ? end('code_reused') : written;
}

interface Refresh {
  refresh_token: string;
  client_id: string;
  resource?: string | undefined;
  scope?: string | undefined;
}

/**
 * The next tokens of a grant, after its person, session and company were checked again.
 * @returns or invalid_grant, invalid_target, invalid_scope, IDP_UNAVAILABLE
 */
export async function refreshGrant(
  context: SignInContext,
  { refresh_token, client_id, resource, scope }: Refresh,
): Promise<Result<GrantTokens, Failure>> {
  const { db, settings } = context;
  const now = context.now();
  const verified = await verifyOwnToken(settings, 'mcp_refresh', refresh_token, now);
  if (!verified.ok) return refused(REFRESH_REFUSED, verified.failure.reason);
  const { sub, jti } = verified.value;
  const isIt = eq(oauthGrants.id, sub);
  const [row] = await db
    .select()
    .from(oauthGrants)
    .where(and(isIt, isUsable(now)));
  if (!row || row.clientId !== client_id)
    return refused(REFRESH_REFUSED, row ? 'another client' : 'no grant');
  if (resource !== undefined && resource !== row.resource)
    return fail({
      code: 'invalid_target',
      fields: { error_description: `resource has to be ${row.resource}.` },
    });
  const scopes = readScopes(settings, scope).filter((name) => row.scopes.includes(name));
  if (scopes.length === 0)
    return fail({
      code: 'invalid_scope',
      fields: { error_description: 'The sign-in has none of these scopes.' },
    });
  const end = async () => {
    await endGrant(db, row, 'refresh_token_reused', await unprovenActor(context, row), now);
    return refused(REFRESH_REFUSED, 'a refresh token that was used');
  };
  if (row.refreshId !== jti) {
    const next = nextOfFirstUse(row, jti, now);
    return next === null ? end() : ok(await issue(context, row, next, scopes, now));
  }
  const confirmed = await confirmPerson(context, row);
  if (!confirmed.ok) return confirmed;
  const refreshId = crypto.randomUUID();
  const isUnused = and(isIt, eq(oauthGrants.refreshId, jti));
  const used = { refreshId, previousRefreshId: jti, refreshedAt: context.now() };
  const written = await guardedWrite(db, {
    decides: (isAllowed) => db.update(oauthGrants).set(used).where(and(isUnused, isAllowed)),
    require: [[isThere(oauthGrants, isUnused), invalidGrant(REFRESH_REFUSED)]],
  });
  if (written.ok) return ok(await issue(context, row, refreshId, scopes, now));
  const [present] = await db.select().from(oauthGrants).where(isIt);
  const next = present ? nextOfFirstUse(present, jti, now) : null;
  return next === null ? end() : ok(await issue(context, row, next, scopes, now));
}

/**
 * The ID of the token that the first use of this one gave, for a request that arrived before that use was answered; null for
 * any other request.
 * @param arrivedAt by the clock of this isolate, which is a few milliseconds off that of others
 */
function nextOfFirstUse(
  { refreshId, previousRefreshId, refreshedAt }: OAuthGrantRow,
  jti: string,
  arrivedAt: Date,
): string | null {
  return previousRefreshId === jti && refreshedAt !== null && arrivedAt < refreshedAt ? refreshId : null;
}

/**
 * Whether the person of a grant is still a member, may sign in the way they did, and has an open session, which this prolongs:
 * without that, a client would have to sign in again as soon as nobody has used the console for a week.
 * @returns or invalid_grant, IDP_UNAVAILABLE, SSO_MISCONFIGURED
 */
async function confirmPerson(context: SignInContext, row: OAuthGrantRow): Promise<Result<null, Failure>> {
  const { db, env, settings } = context;
  const now = context.now();
  const [user] = await db
    .select({ email: users.email, gid: users.gid })
    .from(users)
    .where(and(eq(users.id, row.createdBy), eq(users.tenantId, row.tenantId)));
  if (!user) return refused(REFRESH_REFUSED, 'the person has left');
  // A grant whose code is not exchanged yet is no machine, and its person has just consented.
  if (row.refreshId !== null && !(await machineRecord(env.DB, { type: 'grant', id: row.id }, now)))
    return refused(REFRESH_REFUSED, 'no member of the tenant');
  const byCap = new Date(
    Math.min(seconds(now, settings.JWT_REFRESH_TTL_SECONDS).getTime(), row.expiresAt.getTime()),
  );
  const [session] =
    row.sessionId === null
      ? []
      : await db
          .select({ id: sessions.id, personId: sessions.personId })
          .from(sessions)
          .where(eq(sessions.id, row.sessionId));
  if (row.sessionId !== null && !session) return refused(REFRESH_REFUSED, 'the session has ended');
  const confirmed = session?.personId
    ? await confirmCompany(context, session.id, session.personId)
    : await confirmOtherWays(context, user.email);
  if (!confirmed.ok) return confirmed;
  const { until } = confirmed.value;
  const expiresAt = until !== null && until < byCap ? until : byCap;
  if (session)
    await db
      .update(sessions)
      .set({ expiresAt })
      .where(and(eq(sessions.id, session.id), lt(sessions.expiresAt, expiresAt)));
  return ok(null);
}

/** @returns whether the company of an address lets its person sign in without its provider */
async function confirmOtherWays(
  context: SignInContext,
  email: string,
): Promise<Result<{ until: null }, Failure>> {
  const allowed = await requireOtherWays(context, email);
  return allowed.ok
    ? ok({ until: null })
    : refused(REFRESH_REFUSED, 'the company requires its identity provider');
}

/** Asks the provider of a person, as a renewal of their session does. @returns when the session ends at the latest */
async function confirmCompany(
  context: SignInContext,
  sessionId: string,
  personId: string,
): Promise<Result<{ until: Date | null }, Failure>> {
  const { db, client } = context;
  const [person] = await db
    .select()
    .from(providerPeople)
    .where(and(eq(providerPeople.id, personId), eq(providerPeople.active, true)));
  if (!person) return refused(REFRESH_REFUSED, 'the session has ended');
  const { providerId, email, tenantId } = person;
  const confirmed = await confirmCompanySession(context, { sessionId, personId, providerId });
  if (!confirmed.ok) {
    return confirmed.failure.code === 'REFRESH_TOKEN_WRONG'
      ? refused(REFRESH_REFUSED, confirmed.failure.reason)
      : confirmed;
  }
  if (!confirmed.value.ended) return ok(confirmed.value);
  const details = { metadata: { ...sessionMetadata(sessionId).metadata, by: 'identity_provider' } };
  const actor = actorWith(client, { userId: null, email, tenantId });
  await endSession(db, sessionId, auditEvent('session.ended', actor, details, context.now()));
  return refused(REFRESH_REFUSED, 'the identity provider refuses the person');
}

/**
 * Ends the grant of a token (RFC 7009), whichever of its tokens it is. A token that is not valid is no failure.
 * @returns or invalid_grant for a token of another client
 */
export async function revokeByToken(
  context: SignInContext & { client: ClientDetails },
  { token, client_id }: { token: string; client_id: string },
): Promise<Result<null, Failure>> {
  const { db, settings, client } = context;
  const now = context.now();
  const kind = claimedMachineKind(settings, token) === 'mcp' ? 'mcp' : 'mcp_refresh';
  const verified = await verifyOwnToken(settings, kind, token, now);
  if (!verified.ok) return ok(null);
  const { sub: id } = verified.value;
  const [row] = await db.select().from(oauthGrants).where(eq(oauthGrants.id, id));
  if (!row) return ok(null);
  if (row.clientId !== client_id) return refused('The token is one of another client.');
  const { createdBy: userId, tenantId } = row;
  const actor = actorWith(client, { userId, email: '', tenantId, machine: { type: 'grant', id } });
  await endGrant(db, row, 'client_signed_out', actor, now);
  return ok(null);
}
