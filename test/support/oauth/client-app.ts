import { createHash, randomBytes } from 'node:crypto';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Api } from '../api.ts';

/** A client of the Model Context Protocol that does every step of OAuth by hand. */

export const OAUTH = '/api/v1/auth/oauth';
export const CALLBACK = 'https://agent.example.com/callback';

interface Pkce {
  verifier: string;
  challenge: string;
}

export function newPkce(): Pkce {
  const verifier = randomBytes(32).toString('base64url');
  return { verifier, challenge: createHash('sha256').update(verifier).digest('base64url') };
}

let addresses = 0;
/** Each from an address of its own, because registrations are counted by address. */
const fromElsewhere = () => {
  addresses += 1;
  return { 'CF-Connecting-IP': `198.18.${addresses >> 8}.${addresses & 255}` };
};

export function register(url: string, metadata: unknown, headers = fromElsewhere()) {
  return new Api(url, null).post<{ client_id: string; error?: string }>(
    `${OAUTH}/register`,
    metadata,
    headers,
  );
}

export type Parameters = Record<string, string | undefined>;

/** A right authorization request. */
export const requestFor = (
  base: string,
  client_id: string,
  { challenge }: Pkce,
  redirect_uri = CALLBACK,
): Parameters => ({
  response_type: 'code',
  client_id,
  redirect_uri,
  code_challenge: challenge,
  code_challenge_method: 'S256',
  resource: `${base}/mcp`,
  state: 'the state',
});

const present = (parameters: Parameters) =>
  Object.entries(parameters).filter((entry): entry is [string, string] => entry[1] !== undefined);

export const authorize = (url: string, parameters: Parameters | string) => {
  const query =
    typeof parameters === 'string' ? parameters : new URLSearchParams(present(parameters)).toString();
  return new Api(url, null).get<Record<string, string>>(`${OAUTH}/authorize?${query}`);
};

const FORM = { 'Content-Type': 'application/x-www-form-urlencoded' };

export const sendForm = (url: string, endpoint: 'token' | 'revoke', parameters: Parameters | string) => {
  const body =
    typeof parameters === 'string' ? parameters : new URLSearchParams(present(parameters)).toString();
  return new Api(url, null).call<Record<string, string>>('POST', `${OAUTH}/${endpoint}`, {
    body,
    headers: FORM,
  });
};

export const CONSENT = {
  role: 'operator',
  scopes: ['read', 'write'],
  permissions: [] as string[],
  project_id: null as string | null,
  branch_pattern: 'agent-*' as string | null,
};

/** What the consent page does when a person agrees. */
export const consent = (person: Api, request: Parameters, more: Partial<typeof CONSENT> = {}) =>
  person.post<{ grant: { id: string }; redirect_uri: string; error?: string }>('/api/v1/oauth-grants', {
    request,
    consent: { ...CONSENT, ...more },
  });

interface AgentTokens {
  access_token: string;
  refresh_token: string;
}

/** Signs in a registered client. */
export async function signInClient(
  url: string,
  base: string,
  person: Api,
  more: Partial<typeof CONSENT> = {},
) {
  const pkce = newPkce();
  const registered = await register(url, { client_name: 'Agent', redirect_uris: [CALLBACK] });
  const client_id = registered.body.client_id;
  const request = requestFor(base, client_id, pkce);
  const agreed = await consent(person, request, more);
  if (agreed.status !== 201) throw new Error(`${agreed.status} ${JSON.stringify(agreed.body)}`);
  const code = new URL(agreed.body.redirect_uri).searchParams.get('code') ?? '';
  const form = {
    grant_type: 'authorization_code',
    client_id,
    code,
    redirect_uri: CALLBACK,
    code_verifier: pkce.verifier,
    resource: `${base}/mcp`,
  };
  return { client_id, request, form, grantId: agreed.body.grant.id, pkce };
}

export async function tokensOf(url: string, form: Parameters): Promise<AgentTokens> {
  const { status, body } = await sendForm(url, 'token', form);
  if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
  return body as unknown as AgentTokens;
}

/** Sends a request of the protocol. */
export const callMcp = (
  url: string,
  token: string | null,
  method = 'ping',
  params: Record<string, unknown> = {},
  query = '',
) =>
  fetch(`${url}/mcp${query}`, {
    method: 'POST',
    headers: {
      accept: 'application/json, text/event-stream',
      'content-type': 'application/json',
      'CF-Connecting-IP': '127.0.0.1',
      ...(token !== null && { authorization: `Bearer ${token}` }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params }),
  });

/** The result of a tool. */
export async function callTool(url: string, token: string, name: string, args: Record<string, unknown> = {}) {
  const response = await callMcp(url, token, 'tools/call', { name, arguments: args });
  // One event of a stream, or JSON.
  const text = (await response.text()).replace(/^[\s\S]*?^data: (.*)$[\s\S]*/m, '$1');
  const body = JSON.parse(text) as {
    result?: { isError?: boolean; structuredContent?: unknown; content: { text: string }[] };
  };
  return { status: response.status, ...body.result, text: body.result?.content[0]?.text ?? '' };
}

/** A server of client ID metadata documents on a local port. */
export async function startDocuments() {
  const documents = {
    url: '',
    requests: 0,
    /** By path; a function responds itself. */
    at: new Map<string, unknown>(),
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
  const server = createServer((request, response) => {
    documents.requests += 1;
    const found = documents.at.get(request.url ?? '');
    if (typeof found === 'function') return (found as (response: ServerResponse) => void)(response);
    response.setHeader('content-type', 'application/json').end(JSON.stringify(found ?? null));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  documents.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return documents;
}
