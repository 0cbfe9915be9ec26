import {
  type AuthorizationServer,
  allowInsecureRequests,
  type Client,
  type ClientAuth,
  ClientSecretBasic,
  clockTolerance,
  discoveryRequest,
  None,
  processDiscoveryResponse,
} from 'oauth4webapi';
import type { AppContext } from '../../app-env.ts';
import { readSettings, type Settings } from '../../settings.ts';
import { providerUnavailable } from './provider-failure.ts';

const DISCOVERED_FOR_MS = 3_600_000;
const ANSWER_WITHIN_MS = 10_000;
/** As for tokens (spec 2.8). */
const SKEW_SECONDS = 30;

/** Which of the gateway's two clients asks: the one for browsers and passwords, or the one of command lines. */
export type ClientName = 'gateway' | 'cli';

interface Party {
  server: AuthorizationServer;
  client: Client;
  authentication: ClientAuth;
  options: { signal: () => AbortSignal; [allowInsecureRequests]: boolean };
}

const discovered = new WeakMap<Settings, { server: AuthorizationServer; until: number }>();

const optionsOf = ({ IDP_URL }: Settings): Party['options'] => ({
  signal: () => AbortSignal.timeout(ANSWER_WITHIN_MS),
  // Who chose http for the provider itself, on a machine of his own, has chosen it for its endpoints.
  [allowInsecureRequests]: IDP_URL.startsWith('http:'),
});

/** What the provider says of itself (OpenID Connect Discovery 1.0). @throws ApiError IDP_UNAVAILABLE */
export async function discover(settings: Settings): Promise<AuthorizationServer> {
  const known = discovered.get(settings);
  if (known && Date.now() < known.until) return known.server;
  const issuer = new URL(settings.IDP_URL);
  const server = await discoveryRequest(issuer, optionsOf(settings))
    .then((response) => processDiscoveryResponse(issuer, response))
    .catch((error: Error) => {
      throw providerUnavailable(error.message);
    });
  discovered.set(settings, { server, until: Date.now() + DISCOVERED_FOR_MS });
  return server;
}

const clientIdOf = (name: ClientName, { IDP_CLIENT_ID, IDP_CLI_CLIENT_ID }: Settings) =>
  name === 'cli' ? IDP_CLI_CLIENT_ID : IDP_CLIENT_ID;

/** What a request to the provider takes. @throws ApiError IDP_UNAVAILABLE */
export async function partyOf(c: AppContext, name: ClientName): Promise<Party> {
  const settings = readSettings(c.env);
  const secret = name === 'gateway' ? settings.IDP_CLIENT_SECRET : undefined;
  return {
    server: await discover(settings),
    client: { client_id: clientIdOf(name, settings), [clockTolerance]: SKEW_SECONDS },
    authentication: secret === undefined ? None() : ClientSecretBasic(secret),
    options: optionsOf(settings),
  };
}

/** What a sign-in asks for (spec 4.1), space-separated. */
export const scopesOf = ({ SERVICE_NAME }: Settings) =>
  `openid profile email ${SERVICE_NAME}:read ${SERVICE_NAME}:write`;

/** Where a person signs in at the provider. @throws ApiError IDP_UNAVAILABLE */
export async function authorizationUrl(
  c: AppContext,
  name: ClientName,
  parameters: Record<'redirect_uri' | 'state' | 'code_challenge', string> & { nonce?: string },
): Promise<string> {
  const settings = readSettings(c.env);
  const { authorization_endpoint } = await discover(settings);
  if (!authorization_endpoint) throw providerUnavailable('the provider names no authorization endpoint');
  const url = new URL(authorization_endpoint);
  const asked = {
    response_type: 'code',
    client_id: clientIdOf(name, settings),
    scope: scopesOf(settings),
    code_challenge_method: 'S256',
    ...parameters,
  };
  for (const [parameter, value] of Object.entries(asked)) url.searchParams.set(parameter, value);
  return url.href;
}
