import { eq } from 'drizzle-orm';
import { base64url } from 'jose';
import { calculatePKCECodeChallenge } from 'oauth4webapi';
import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { actorWith, auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import { isSameText } from '../crypto/encoding.ts';
import { sealForClient, unsealFromClient } from '../crypto/seal.ts';
import { identityProviders, type ProviderPersonRow, type ProviderRow } from '../database/company-schema.ts';
import { auditEvents } from '../database/schema.ts';
import { personOf } from '../identity-providers/claims.ts';
import { providerOfAddress, verifiedDomains } from '../identity-providers/domains.ts';
import { authenticateByGitHub, gitHubAuthorizationUrl } from '../identity-providers/github.ts';
import {
  type Authenticated,
  authenticateByOpenId,
  openIdAuthorizationUrl,
  type SignInStart,
} from '../identity-providers/openid.ts';
import { admitPerson } from '../identity-providers/people.ts';
import { callbackPath } from '../identity-providers/provider.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Settings } from '../settings.ts';
import { materialize } from '../tenancy/users.ts';
import { attemptOnce, type BrowserProvider } from './browser-sign-in.ts';
import { companySession } from './company-session.ts';
import type { SignedIn } from './first-factor.ts';
import { continueSession, openSession, type SessionHolder } from './sessions.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';
import { CliRequest, expiryOfSignIn } from './state-cookie.ts';

export const METHODS = ['password', 'code', 'idp', 'sso'] as const;

/** Ways to sign in that a page offers to an address. */
export interface SignInMethods {
  methods: (typeof METHODS)[number][];
  sso: { name: string; start_url: string } | null;
}

const startPath = (providerId: string) => `/api/v1/auth/sso/${providerId}/start`;

/**
 * By the domain of the address alone, so that the result says nothing about accounts.
 * @param email left out: the ways that this gateway has for everyone
 */
export async function methodsFor(
  { db, settings }: SignInContext,
  email: string | undefined,
): Promise<SignInMethods> {
  const found = email === undefined ? null : await providerOfAddress(db, email);
  const sso = found && {
    name: found.provider.name,
    start_url: settings.BASE_URL + startPath(found.provider.id),
  };
  if (found?.required) return { methods: ['sso'], sso };
  return {
    methods: [
      'password',
      ...(sendsMail(settings) ? (['code'] as const) : []),
      ...(settings.IDP_URL === undefined ? [] : (['idp'] as const)),
      ...(sso ? (['sso'] as const) : []),
    ],
    sso,
  };
}

const CODE_TTL_SECONDS = 120;

const CLI_SEAL = ['sso_cli_request'];
const CODE_SEAL = ['sso_cli_code'];

const encode = (text: string) => base64url.encode(text);
const decode = (text: string): string => {
  try {
    return new TextDecoder().decode(base64url.decode(text));
  } catch {
    return '';
  }
};

/** The request of a command line, as a parameter of an address that a browser opens. */
async function sealCliRequest(
  { settings, now }: SignInContext,
  request: Omit<CliRequest, 'expiresAt'>,
): Promise<string> {
  const expiresAt = expiryOfSignIn(now());
  return encode(
    await sealForClient(settings.CREDENTIAL_KEYS, CLI_SEAL, JSON.stringify({ ...request, expiresAt })),
  );
}

async function unsealCliRequest(
  { settings, now }: SignInContext,
  sealed: string,
): Promise<CliRequest | null> {
  const text = await unsealFromClient(settings.CREDENTIAL_KEYS, CLI_SEAL, decode(sealed));
  const request = text === null ? null : CliRequest.parse(JSON.parse(text));
  return request && request.expiresAt > now() ? request : null;
}

/** The provider of a company, for a sign-in in a browser. @returns or NOT_FOUND */
export async function companyProvider(
  context: SignInContext,
  providerId: string,
): Promise<Result<BrowserProvider<CompanySession>, Failure>> {
  const { db, settings } = context;
  const [provider] = await db.select().from(identityProviders).where(eq(identityProviders.id, providerId));
  if (!provider) return fail({ code: 'NOT_FOUND' });
  return ok({
    kind: 'sso_sign_in',
    id: providerId,
    callbackPath: callbackPath(providerId),
    authorizationUrl: async (parameters) =>
      provider.kind === 'github'
        ? ok(gitHubAuthorizationUrl(provider, settings, parameters))
        : openIdAuthorizationUrl(provider, settings, parameters),
    complete: (parameters, start) => completeSso(context, provider, parameters, start),
  });
}

/**
 * The request of a command line that a sign-in is started for.
 * @param sealed as `sealCliRequest` returns it; undefined: there is none
 * @returns or SIGN_IN_FAILED
 */
export async function cliRequestOf(
  context: SignInContext,
  sealed: string | undefined,
): Promise<Result<CliRequest | null, Failure>> {
  if (sealed === undefined) return ok(null);
  const cli = await unsealCliRequest(context, sealed);
  return cli ? ok(cli) : fail({ code: 'SIGN_IN_FAILED', reason: 'no request of a command line' });
}

interface CompanySession extends SignedIn {
  sessionId: string;
}

async function completeSso(
  context: SignInContext,
  provider: ProviderRow,
  parameters: URLSearchParams,
  start: SignInStart,
): Promise<Result<CompanySession, Failure>> {
  const { db, settings } = context;
  const domains = await verifiedDomains(db, provider.id);
  const authenticated =
    provider.kind === 'github'
      ? await authenticateByGitHub(provider, settings, parameters, start, domains)
      : await authenticateByOpenId(provider, settings, parameters, start);
  if (!authenticated.ok) return authenticated;
  return signInPerson(context, provider, authenticated.value, domains);
}

/** The person as the holder of a session. */
export const holderOf = (person: ProviderPersonRow, { id, issuer }: ProviderRow): SessionHolder => ({
  ...person,
  idp: { id, issuer },
});

async function signInPerson(
  context: SignInContext,
  provider: ProviderRow,
  { claims, refreshToken }: Authenticated,
  domains: readonly string[],
): Promise<Result<CompanySession, Failure>> {
  const { db, client } = context;
  const now = context.now();
  const described = personOf(provider, domains, claims);
  if (!described.ok) return described;
  const actor = actorWith(client, {
    userId: null,
    email: described.value.email,
    tenantId: provider.tenantId,
  });
  const admitted = await admitPerson(db, provider, described.value, actor, now);
  if (!admitted.ok) {
    const metadata = { first_factor: 'sso', provider_id: provider.id, reason: admitted.failure.code };
    await db.insert(auditEvents).values(auditEvent('sign_in.failed', actor, { metadata }, now));
    return admitted;
  }
  return openCompanySession(context, holderOf(admitted.value, provider), refreshToken, 'sso');
}

/** Opens a session of a person, and makes the user that its requests act as. */
export async function openCompanySession(
  context: SignInContext,
  holder: SessionHolder,
  refreshToken: string | null,
  factor: 'sso' | 'owner_recovery_code',
): Promise<Result<CompanySession, Failure>> {
  const { env, db, settings, client } = context;
  const now = context.now();
  const sessionId = crypto.randomUUID();
  const session = { sessionId, ...(await companySession(settings, sessionId, refreshToken, now)) };
  const tokens = await openSession(db, settings, holder, client, now, session);
  if (!tokens.ok) return fail({ code: 'SIGN_IN_FAILED', reason: 'the person was changed meanwhile' });
  const principal = await materialize(env.DB, identityOfHolder(holder, sessionId, settings, now), now);
  if (!principal.ok) return principal;
  const metadata = { first_factor: factor, second_factor: null, provider_id: holder.idp?.id };
  const event = auditEvent('sign_in.succeeded', actorWith(client, principal.value), { metadata }, now);
  await db.insert(auditEvents).values(event);
  return ok({ tokens: tokens.value, principal: principal.value, sessionId });
}

const identityOfHolder = (holder: SessionHolder, sessionId: string, settings: Settings, now: Date) => {
  const seconds = Math.floor(now.getTime() / 1000);
  return {
    issuer: holder.idp?.issuer ?? settings.BASE_URL,
    gid: holder.id,
    email: holder.email,
    role: holder.role,
    scopes: [],
    service: settings.SERVICE_NAME,
    tenantId: holder.tenantId,
    issuedAt: new Date(seconds * 1000),
    expiresAt: new Date((seconds + settings.JWT_ACCESS_TTL_SECONDS) * 1000),
    sessionId,
    ...(holder.idp && { providerId: holder.idp.id }),
  };
};

const CliCode = z.object({
  sessionId: z.uuid(),
  challenge: z.string(),
  redirectUri: z.string(),
  expiresAt: z.coerce.date(),
});

/** Marks the codes of the gateway; a code of the PASETO provider goes there. */
const CODE_PREFIX = 'bgc_';

/** The address on which a command line waits, with a code for the session, or with the refusal. */
export async function cliRedirect(
  { settings, now }: SignInContext,
  cli: CliRequest,
  outcome: Result<CompanySession, Failure>,
): Promise<string> {
  const url = new URL(cli.redirectUri);
  url.searchParams.set('state', cli.state);
  if (!outcome.ok) {
    url.searchParams.set('error', 'access_denied');
    url.searchParams.set('error_description', outcome.failure.code);
    return url.href;
  }
  const code: z.input<typeof CliCode> = {
    sessionId: outcome.value.sessionId,
    challenge: cli.challenge,
    redirectUri: cli.redirectUri,
    expiresAt: new Date(now().getTime() + CODE_TTL_SECONDS * 1000),
  };
  const sealed = await sealForClient(settings.CREDENTIAL_KEYS, CODE_SEAL, JSON.stringify(code));
  url.searchParams.set('code', CODE_PREFIX + encode(sealed));
  return url.href;
}

export const isCompanyCode = (code: string): boolean => code.startsWith(CODE_PREFIX);

/**
 * Exchanges a code of the gateway for the tokens of its session. A code is valid once, even if it is
 * submitted with a wrong verifier.
 * @returns or SIGN_IN_FAILED
 */
export async function exchangeCompanyCode(
  context: SignInContext,
  { code, redirect_uri, code_verifier }: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<Result<{ tokens: Tokens & { refreshExpiresAt: Date }; principal: Principal }, Failure>> {
  const { db, env, settings, client } = context;
  const text = await unsealFromClient(
    settings.CREDENTIAL_KEYS,
    CODE_SEAL,
    decode(code.slice(CODE_PREFIX.length)),
  );
  const refused = (reason: string) => fail<Failure>({ code: 'SIGN_IN_FAILED', reason });
  if (text === null) return refused('no code of the gateway');
  const { sessionId, challenge, redirectUri, expiresAt } = CliCode.parse(JSON.parse(text));
  return attemptOnce(context, 'code', code, async () => {
    const now = context.now();
    if (expiresAt <= now) return refused('the code has expired');
    if (redirectUri !== redirect_uri) return refused('another redirect address');
    if (!(await isSameText(await calculatePKCECodeChallenge(code_verifier), challenge)))
      return refused('the verifier is wrong');
    const continued = await continueSession(context, sessionId);
    if (!continued.ok) return continued;
    const { tokens, refreshExpiresAt, holder } = continued.value;
    const identity = identityOfHolder(holder, sessionId, settings, now);
    const principal = await materialize(env.DB, identity, now);
    if (!principal.ok) return principal;
    const name = `${settings.SERVICE_NAME}.cli.login` as const;
    await db.insert(auditEvents).values(auditEvent(name, actorWith(client, principal.value), {}, now));
    return ok({ tokens: { ...tokens, refreshExpiresAt }, principal: principal.value });
  });
}

/**
 * The address that a command line opens in a browser, if a company's provider or the sign-in page of the
 * gateway is the way to sign in.
 * @returns null if it is the identity provider of the gateway
 */
export async function companyCliUrl(
  context: SignInContext,
  { redirect_uri, state, code_challenge }: Record<'redirect_uri' | 'state' | 'code_challenge', string>,
  email: string | undefined,
): Promise<string | null> {
  const { db, settings } = context;
  const found = email === undefined ? null : await providerOfAddress(db, email);
  if (!found && settings.IDP_URL !== undefined) return null;
  const request = { redirectUri: redirect_uri, state, challenge: code_challenge };
  const cli = await sealCliRequest(context, request);
  const url = new URL(found ? startPath(found.provider.id) : SIGN_IN_PAGE, settings.BASE_URL);
  url.searchParams.set('cli', cli);
  if (found && email !== undefined) url.searchParams.set('login_hint', email);
  return url.href;
}

/** The page of the console that asks for the address. */
const SIGN_IN_PAGE = '/sign-in';
