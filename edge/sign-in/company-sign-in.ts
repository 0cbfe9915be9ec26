import { eq } from 'drizzle-orm';
import { base64url } from 'jose';
import {
  calculatePKCECodeChallenge,
  generateRandomCodeVerifier,
  generateRandomNonce,
  generateRandomState,
} from 'oauth4webapi';
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
} from '../identity-providers/openid.ts';
import { admitPerson } from '../identity-providers/people.ts';
import { callbackPath } from '../identity-providers/provider.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Settings } from '../settings.ts';
import { materialize } from '../tenancy/users.ts';
import { ResponseForm, type SignedIn } from './first-factor.ts';
import { providerSession } from './provider-sessions.ts';
import { attemptOnce } from './provider-sign-in.ts';
import { continueSession, openSession, type SessionHolder } from './sessions.ts';
import type { SignInContext, Tokens } from './sign-in-context.ts';

export const METHODS = ['password', 'code', 'idp', 'sso'] as const;

/** What a sign-in page offers to an address. */
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

const TTL_SECONDS = 600;
const CODE_TTL_SECONDS = 120;

/** A command line that waits for a code on a loopback address (RFC 8252 section 7.3). */
const CliRequest = z.object({
  redirectUri: z.string(),
  state: z.string(),
  challenge: z.string(),
  expiresAt: z.coerce.date(),
});
type CliRequest = z.output<typeof CliRequest>;

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
  const expiresAt = new Date(now().getTime() + TTL_SECONDS * 1000);
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

/** What the callback needs from the start of the sign-in; stored by the browser that started it. */
const StartedSignIn = z.object({
  nonce: z.string(),
  verifier: z.string(),
  returnTo: z.string(),
  response: ResponseForm,
  cli: CliRequest.nullable(),
  expiresAt: z.coerce.date(),
});
type StartedSignIn = z.output<typeof StartedSignIn>;

/** Sealed for one provider and one state, so that a cookie is of no use for another sign-in. */
const stateContext = (providerId: string, state: string) => ['sso_sign_in', providerId, state];

/** The cookie of one state; `SameSite=Lax`, because the redirect comes from the provider's site. */
export function ssoCookie({ BASE_URL }: Settings, providerId: string, state: string) {
  const secure = BASE_URL.startsWith('https:');
  return {
    name: `${secure ? '__Secure-' : ''}sso_sign_in_${state.replaceAll(/[^\w-]/g, '').slice(0, 64)}`,
    attributes: {
      path: callbackPath(providerId),
      httpOnly: true,
      sameSite: 'Lax' as const,
      secure,
      maxAge: TTL_SECONDS,
    },
  };
}

async function findProvider(
  { db }: SignInContext,
  providerId: string,
): Promise<Result<ProviderRow, Failure>> {
  const [row] = await db.select().from(identityProviders).where(eq(identityProviders.id, providerId));
  return row ? ok(row) : fail({ code: 'NOT_FOUND' });
}

interface SsoStart {
  returnTo: string;
  response: ResponseForm;
  /** As `sealCliRequest` returns it. */
  cli?: string | undefined;
  /** The address that the person entered, for the provider's page. */
  hint?: string | undefined;
}

/** @returns or NOT_FOUND, SIGN_IN_FAILED, IDP_UNAVAILABLE, SSO_MISCONFIGURED */
export async function startSso(
  context: SignInContext,
  providerId: string,
  { returnTo, response, cli: sealedCli, hint }: SsoStart,
): Promise<Result<{ location: string; state: string; cookie: string }, Failure>> {
  const { settings, now } = context;
  const found = await findProvider(context, providerId);
  if (!found.ok) return found;
  const provider = found.value;
  const cli = sealedCli === undefined ? null : await unsealCliRequest(context, sealedCli);
  if (sealedCli !== undefined && !cli)
    return fail({ code: 'SIGN_IN_FAILED', reason: 'no request of a command line' });
  const state = generateRandomState();
  const nonce = generateRandomNonce();
  const verifier = generateRandomCodeVerifier();
  const challenge = await calculatePKCECodeChallenge(verifier);
  const parameters = { state, nonce, challenge, ...(hint !== undefined && { hint }) };
  const location =
    provider.kind === 'github'
      ? ok(gitHubAuthorizationUrl(provider, settings, parameters))
      : await openIdAuthorizationUrl(provider, settings, parameters);
  if (!location.ok) return location;
  const expiresAt = new Date(now().getTime() + TTL_SECONDS * 1000);
  const started: StartedSignIn = { nonce, verifier, returnTo, response, cli, expiresAt };
  const cookie = await sealForClient(
    settings.CREDENTIAL_KEYS,
    stateContext(providerId, state),
    JSON.stringify(started),
  );
  return ok({ location: location.value, state, cookie });
}

/** How a sign-in that this browser started ends, and the step that ends it. */
export interface ReturnedSso extends Pick<StartedSignIn, 'returnTo' | 'response' | 'cli'> {
  /** @returns or SIGN_IN_FAILED, SSO_ADDRESS_REFUSED, SSO_DISABLED, SSO_MISCONFIGURED, IDP_UNAVAILABLE */
  complete: () => Promise<Result<CompanySession, Failure>>;
}

interface CompanySession extends SignedIn {
  sessionId: string;
}

/**
 * The sign-in that a provider sends the browser back from.
 * @param cookie the value of the cookie of the state in `parameters`
 * @returns or NOT_FOUND; SIGN_IN_FAILED when this browser did not start it at this provider
 */
export async function returnFromSso(
  context: SignInContext,
  providerId: string,
  parameters: URLSearchParams,
  cookie: string | undefined,
): Promise<Result<ReturnedSso, Failure>> {
  const { settings, now } = context;
  const refused = fail<Failure>({
    code: 'SIGN_IN_FAILED',
    reason: 'this browser did not start a sign-in with this state',
  });
  const found = await findProvider(context, providerId);
  if (!found.ok) return found;
  const state = parameters.get('state');
  if (state === null || cookie === undefined) return refused;
  const text = await unsealFromClient(settings.CREDENTIAL_KEYS, stateContext(providerId, state), cookie);
  const started = text === null ? null : StartedSignIn.parse(JSON.parse(text));
  if (!started || started.expiresAt <= now()) return refused;
  const complete = () =>
    attemptOnce(context, 'state', state, () =>
      completeSso(context, found.value, parameters, { state, ...started }),
    );
  return ok({ returnTo: started.returnTo, response: started.response, cli: started.cli, complete });
}

async function completeSso(
  context: SignInContext,
  provider: ProviderRow,
  parameters: URLSearchParams,
  start: StartedSignIn & { state: string },
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
  const session = { sessionId, ...(await providerSession(settings, sessionId, refreshToken, now)) };
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
