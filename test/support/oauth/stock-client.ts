import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  Client,
  type OAuthClientProvider,
  StreamableHTTPClientTransport,
} from '@modelcontextprotocol/client';

type Of<M extends keyof OAuthClientProvider> = NonNullable<OAuthClientProvider[M]>;
type Stored<M extends 'saveTokens' | 'saveClientInformation' | 'saveDiscoveryState'> = globalThis.Parameters<
  Of<M>
>[0];

/** A program with the SDK's own client, which listens on this computer and has a browser opened. */
export async function startStockClient(name: string) {
  const returned: URLSearchParams[] = [];
  const server = createServer((request, response) => {
    returned.push(new URL(request.url ?? '/', 'http://127.0.0.1').searchParams);
    response.end('Return to the program.');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const redirectUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}/callback`;
  let client: Stored<'saveClientInformation'> | undefined;
  let tokens: Stored<'saveTokens'> | undefined;
  let discovery: Stored<'saveDiscoveryState'> | undefined;
  let verifier = '';
  const opened: URL[] = [];
  const provider: OAuthClientProvider = {
    redirectUrl,
    clientMetadata: { client_name: name, redirect_uris: [redirectUrl] },
    state: () => crypto.randomUUID(),
    clientInformation: () => client,
    saveClientInformation: (information) => {
      client = information;
    },
    tokens: () => tokens,
    saveTokens: (issued) => {
      tokens = issued;
    },
    redirectToAuthorization: (address) => void opened.push(address),
    saveCodeVerifier: (text) => {
      verifier = text;
    },
    codeVerifier: () => verifier,
    saveDiscoveryState: (state) => {
      discovery = state;
    },
    discoveryState: () => discovery,
    invalidateCredentials: (scope) => {
      if (scope === 'all' || scope === 'tokens') tokens = undefined;
      if (scope === 'all' || scope === 'client') client = undefined;
    },
  };
  const clients: Client[] = [];
  const transportTo = (url: string) =>
    new StreamableHTTPClientTransport(new URL('/mcp', url), { authProvider: provider });
  return {
    redirectUrl,
    /** The addresses that a browser was to open. */
    opened,
    /** What the browser brought back. */
    returned,
    tokens: () => tokens,
    connect: async (url: string): Promise<Client> => {
      const connected = new Client({ name, version: '1' });
      clients.push(connected);
      await connected.connect(transportTo(url));
      return connected;
    },
    /** Exchanges what the browser brought back last. */
    finish: (url: string) => transportTo(url).finishAuth(returned.at(-1) ?? new URLSearchParams()),
    stop: async () => {
      await Promise.all(clients.map((each) => each.close()));
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
    },
  };
}
