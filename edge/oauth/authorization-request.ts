import { z } from 'zod';
import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { mcpResource } from '../authentication/own-tokens.ts';
import type { Settings } from '../settings.ts';
import { CLIENT_ID_LENGTH_MAX, documentUrlProblem, isDocumentUrl } from './clients.ts';
import { redirectUriProblem } from './redirect-uri.ts';

/** The request of a client to be let act in the name of a person (RFC 6749 section 4.1.1). No I/O. */

const STATE_LENGTH_MAX = 512;
const Parameter = z.string().max(2048);

/** As a client sends it. What is missing or wrong has an error of OAuth, so the schema alone refuses little. */
export const AuthorizationRequest = z
  .object({
    response_type: Parameter.optional().meta({ example: 'code' }),
    client_id: Parameter.optional().meta({
      description: 'The ID of a registration, or the URL of a client ID metadata document.',
      example: 'https://agent.example.com/client.json',
    }),
    redirect_uri: Parameter.optional().meta({ example: 'http://127.0.0.1:49152/callback' }),
    code_challenge: Parameter.optional().meta({
      description: 'SHA-256 of the verifier in base64url (RFC 7636 section 4.2).',
      example: 'E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM',
    }),
    code_challenge_method: Parameter.optional().meta({ description: 'Only `S256`.', example: 'S256' }),
    resource: Parameter.optional().meta({
      description: 'The URL of `/mcp`, with `?project_id=…` for one project (RFC 8707).',
      example: 'https://branchgate.example.com/mcp',
    }),
    scope: Parameter.optional().meta({ example: 'branchgate:read branchgate:write' }),
    state: Parameter.optional().meta({ description: 'Returned as it is.', example: 'af0ifjsldkj' }),
    response_mode: Parameter.optional().meta({ description: 'Only `query`, the default.' }),
    request: Parameter.optional().meta({ description: 'Not supported.' }),
    request_uri: Parameter.optional().meta({ description: 'Not supported.' }),
  })
  .meta({ id: 'AuthorizationRequest' });

export type Scope = 'read' | 'write';

export interface CheckedRequest {
  clientId: string;
  redirectUri: string;
  codeChallenge: string;
  resource: string;
  /** The project that the resource names; null: none. */
  projectId: string | null;
  /** What the client asks for at most. */
  scopes: readonly Scope[];
  state: string | undefined;
}

type OAuthCode = 'invalid_request' | 'invalid_target' | 'invalid_scope' | 'unsupported_response_type';
const refused = (code: OAuthCode, description: string) =>
  fail<Failure>({ code, fields: { error_description: description }, reason: description });

const S256 = /^[\w-]{43}$/;

/**
 * Checks everything that does not depend on the client.
 * @returns or invalid_request, invalid_client, invalid_target, invalid_scope, unsupported_response_type
 */
export function checkRequest(
  settings: Settings,
  sent: z.output<typeof AuthorizationRequest>,
): Result<CheckedRequest, Failure> {
  const { client_id: clientId, redirect_uri: redirectUri, code_challenge: codeChallenge, state } = sent;
  if (!clientId || clientId.length > CLIENT_ID_LENGTH_MAX)
    return refused('invalid_request', 'client_id is missing, or too long.');
  const problem = isDocumentUrl(clientId) ? documentUrlProblem(settings, clientId) : null;
  if (problem !== null) return refused('invalid_request', `client_id ${problem}.`);
  if (redirectUri === undefined) return refused('invalid_request', 'redirect_uri is missing.');
  const redirectProblem = redirectUriProblem(redirectUri);
  if (redirectProblem !== null) return refused('invalid_request', `redirect_uri ${redirectProblem}.`);
  if (sent.response_type !== 'code')
    return refused('unsupported_response_type', 'response_type has to be code.');
  if (sent.response_mode !== undefined && sent.response_mode !== 'query')
    return refused('invalid_request', 'response_mode has to be query.');
  if (sent.request !== undefined || sent.request_uri !== undefined)
    return refused('invalid_request', 'Request objects are not supported.');
  if (codeChallenge === undefined || !S256.test(codeChallenge))
    return refused('invalid_request', 'code_challenge has to be a SHA-256 in base64url (PKCE).');
  if (sent.code_challenge_method !== 'S256')
    return refused('invalid_request', 'code_challenge_method has to be S256.');
  if (state !== undefined && state.length > STATE_LENGTH_MAX)
    return refused('invalid_request', `state is longer than ${STATE_LENGTH_MAX} characters.`);
  const resource = readResource(settings, sent.resource);
  if (!resource) return refused('invalid_target', `resource has to be ${mcpResource(settings)}.`);
  const scopes = readScopes(settings, sent.scope);
  if (scopes.length === 0)
    return refused('invalid_scope', `scope has none of ${scopesOf(settings).join(', ')}.`);
  return ok({ clientId, redirectUri, codeChallenge, ...resource, scopes, state });
}

/** The scopes of the service that a client can ask for. */
export const scopesOf = (
  { SERVICE_NAME }: Pick<Settings, 'SERVICE_NAME'>,
  scopes: readonly Scope[] = ['read', 'write'],
) => scopes.map((scope) => `${SERVICE_NAME}:${scope}`);

/** Those of the service in a list of scopes; all if there is no list. Scopes of other services are ignored. */
export function readScopes(settings: Pick<Settings, 'SERVICE_NAME'>, scope: string | undefined): Scope[] {
  const asked = scope?.split(' ').filter(Boolean);
  const all: Scope[] = ['read', 'write'];
  return asked?.length ? all.filter((name) => asked.includes(`${settings.SERVICE_NAME}:${name}`)) : all;
}

/** The resource `/mcp`, with the project that its query names; null for any other text. */
function readResource(
  settings: Pick<Settings, 'BASE_URL'>,
  resource: string | undefined,
): { resource: string; projectId: string | null } | null {
  const base = mcpResource(settings);
  if (resource === undefined || !resource.startsWith(base)) return null;
  const query = resource.slice(base.length);
  if (query === '') return { resource, projectId: null };
  const projectId = z
    .uuid()
    .toLowerCase()
    .safeParse(/^\?project_id=(.*)$/.exec(query)?.[1]);
  return projectId.success ? { resource, projectId: projectId.data } : null;
}

/** The address that the client waits at, with the outcome and the issuer, which prevents mix-up (RFC 9207). */
export function responseUri(
  { BASE_URL }: Pick<Settings, 'BASE_URL'>,
  { redirectUri, state }: Pick<CheckedRequest, 'redirectUri' | 'state'>,
  outcome: { code: string } | { error: 'access_denied' },
): string {
  const url = new URL(redirectUri);
  for (const [name, value] of Object.entries(outcome)) url.searchParams.set(name, value);
  if (state !== undefined) url.searchParams.set('state', state);
  url.searchParams.set('iss', BASE_URL);
  return url.href;
}
