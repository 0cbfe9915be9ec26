import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import type { Result } from '../../shared/result.ts';
import type { ProviderRow } from '../database/company-schema.ts';
import type { Settings } from '../settings.ts';
import { domainOf } from './claims.ts';
import type { Authenticated, SignInStart } from './openid.ts';
import { clientSecretOf, redirectUriOf } from './provider.ts';
import { fetchFromProvider, Misconfigured, withProvider } from './provider-fetch.ts';

/** GitHub has OAuth 2.0 without OpenID Connect: the person is who its API says that the token belongs to. */
const SCOPE = 'read:user user:email read:org';
const USER_AGENT = 'branchgate';
const PAGE = 100;

const TokenResponse = z.union([
  z.object({ access_token: z.string().min(1), token_type: z.string() }),
  z.object({ error: z.string() }),
]);
const User = z.object({ id: z.int().positive(), login: z.string() });
const Emails = z.array(z.object({ email: z.string(), primary: z.boolean(), verified: z.boolean() }));
const Organizations = z.array(z.object({ login: z.string() }));
const Teams = z.array(z.object({ slug: z.string(), organization: z.object({ login: z.string() }) }));

/** The code is wrong, used up or of another client. */
class Refused extends Error {
  override readonly name = 'OperationProcessingError';
}

export function gitHubAuthorizationUrl(
  provider: ProviderRow,
  settings: Settings,
  { state, challenge, hint }: { state: string; challenge: string; hint?: string },
): string {
  const url = new URL('/login/oauth/authorize', settings.GITHUB_URL);
  const query = {
    client_id: provider.clientId,
    redirect_uri: redirectUriOf(settings, provider.id),
    scope: SCOPE,
    state,
    code_challenge: challenge,
    code_challenge_method: 'S256',
    ...(hint !== undefined && { login: hint }),
  };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  return url.href;
}

/**
 * Exchanges the code, and reads the person with organizations and teams. The address is a verified one in
 * the domains of the tenant, the primary one first.
 * @returns or SIGN_IN_FAILED, IDP_UNAVAILABLE, SSO_MISCONFIGURED
 */
export const authenticateByGitHub = (
  provider: ProviderRow,
  settings: Settings,
  parameters: URLSearchParams,
  { state, verifier }: SignInStart,
  domains: readonly string[],
): Promise<Result<Authenticated, Failure>> =>
  withProvider(authenticate(provider, settings, parameters, { state, verifier }, domains));

async function authenticate(
  provider: ProviderRow,
  settings: Settings,
  parameters: URLSearchParams,
  { state, verifier }: Omit<SignInStart, 'nonce'>,
  domains: readonly string[],
): Promise<Authenticated> {
  if (parameters.getAll('state').join() !== state) throw new Refused('the state is another one');
  const issuer = parameters.get('iss');
  // GitHub sends none today (RFC 9207).
  if (issuer !== null && issuer !== provider.issuer) throw new Refused('the issuer is another one');
  const [code, ...more] = parameters.getAll('code');
  if (!code || more.length > 0)
    throw new Refused(`the provider refused: ${parameters.get('error')?.slice(0, 64)}`);
  const token = await tokenFor(provider, settings, code, verifier);
  const read = async <S extends z.ZodType>(path: string, schema: S): Promise<z.output<S>> => {
    const init = {
      headers: {
        Authorization: `Bearer ${token}`,
        Accept: 'application/vnd.github+json',
        'User-Agent': USER_AGENT,
      },
    };
    const response = await fetchFromProvider(settings.GITHUB_API_URL + path, init, settings);
    if (response.status >= 500 || response.status === 429)
      throw new Error(`${path}: status ${response.status}`);
    if (!response.ok) throw new Misconfigured(`${path}: status ${response.status}`);
    return schema.parse(await response.json());
  };
  const [user, emails, organizations, teams] = await Promise.all([
    read('/user', User),
    read(`/user/emails?per_page=${PAGE}`, Emails),
    read(`/user/orgs?per_page=${PAGE}`, Organizations),
    read(`/user/teams?per_page=${PAGE}`, Teams),
  ]);
  const verified = emails
    .filter((entry) => entry.verified && domains.includes(domainOf(entry.email)))
    .sort((one, other) => Number(other.primary) - Number(one.primary));
  return {
    claims: {
      iss: provider.issuer,
      sub: String(user.id),
      login: user.login,
      ...(verified[0] && { email: verified[0].email, email_verified: true }),
      organizations: organizations.map(({ login }) => login),
      teams: teams.map(({ slug, organization }) => `${organization.login}/${slug}`),
    },
    // GitHub's token is not stored: it has no lifetime, and could read what the person can.
    refreshToken: null,
  };
}

async function tokenFor(
  provider: ProviderRow,
  settings: Settings,
  code: string,
  code_verifier: string,
): Promise<string> {
  const body = new URLSearchParams({
    client_id: provider.clientId,
    client_secret: await clientSecretOf(settings, provider),
    redirect_uri: redirectUriOf(settings, provider.id),
    code,
    code_verifier,
  });
  const init = { method: 'POST', headers: { Accept: 'application/json', 'User-Agent': USER_AGENT }, body };
  const response = await fetchFromProvider(`${settings.GITHUB_URL}/login/oauth/access_token`, init, settings);
  if (!response.ok) throw new Error(`the token endpoint responded with status ${response.status}`);
  const answer = TokenResponse.parse(await response.json());
  if ('access_token' in answer) return answer.access_token;
  if (answer.error === 'incorrect_client_credentials') throw new Misconfigured(answer.error);
  throw new Refused(answer.error.slice(0, 64));
}
