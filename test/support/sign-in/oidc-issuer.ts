import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { SignJWT } from 'jose';

const PAIRS = {
  RS256: () => generateKeyPairSync('rsa', { modulusLength: 2048 }),
  ES256: () => generateKeyPairSync('ec', { namedCurve: 'P-256' }),
  EdDSA: () => generateKeyPairSync('ed25519'),
};
export type Algorithm = keyof typeof PAIRS;

/** What an issuer responds with to a request of a document. */
type Fault = (response: ServerResponse, path: string) => void;

/** An OpenID Connect issuer on a local port, such as that of a CI service. */
export async function startOidcIssuer(alg: Algorithm = 'ES256') {
  const { publicKey, privateKey } = PAIRS[alg]();
  const kid = randomUUID();
  const entry = { ...publicKey.export({ format: 'jwk' }), kid, use: 'sig', alg };
  const issuer = {
    url: '',
    requests: 0,
    configuration: {} as Record<string, unknown>,
    keys: { keys: [entry] as unknown[] },
    /** Set to respond with something other than a document. */
    fault: null as Fault | null,
    privateKey,
    kid,
    /** An ID token of this issuer. @param header members that differ from those of a valid token */
    token: (claims: Record<string, unknown>, header: Record<string, unknown> = {}) => {
      const now = Math.floor(Date.now() / 1000);
      return new SignJWT({
        iss: issuer.url,
        iat: now,
        nbf: now,
        exp: now + 300,
        jti: randomUUID(),
        ...claims,
      })
        .setProtectedHeader({ alg, kid, typ: 'JWT', ...header })
        .sign(privateKey);
    },
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
  const server = createServer((request, response) => {
    issuer.requests += 1;
    const path = request.url ?? '';
    if (issuer.fault) return issuer.fault(response, path);
    const document = path === '/keys' ? issuer.keys : issuer.configuration;
    response.setHeader('content-type', 'application/json').end(JSON.stringify(document));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  issuer.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  issuer.configuration = { issuer: issuer.url, jwks_uri: `${issuer.url}/keys` };
  return issuer;
}

export type OidcIssuer = Awaited<ReturnType<typeof startOidcIssuer>>;
