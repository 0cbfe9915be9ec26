import { generateKeyPairSync, sign } from 'node:crypto';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type JsonValue, PublicProtocol } from 'paseto';
import { SecretKeyFromCryptoKey, SignFactory } from 'paseto/v4/public';
import { preAuthEncode } from '../../../edge/authentication/paseto.ts';

const paseto = new PublicProtocol(SignFactory);
const utf8 = new TextEncoder();

/** A key of the identity provider, with valid and malformed uses. */
export interface Signer {
  kid: string;
  /** An entry of a key document. */
  entry: { kid: string; alg: 'v4.public'; public_key: string };
  jwk: Record<string, unknown>;
  /** A token as created by the `paseto` package. */
  token: (claims: Record<string, JsonValue>) => Promise<string>;
  /** A token over any bytes, with a valid signature. */
  rawToken: (message: string | Uint8Array, footer: string | Uint8Array | null) => string;
}

export function newSigner(kid: string): Signer {
  const { publicKey, privateKey } = generateKeyPairSync('ed25519');
  const jwk = publicKey.export({ format: 'jwk' });
  const footer = JSON.stringify({ kid, alg: 'v4.public', typ: 'paseto' });
  return {
    kid,
    entry: { kid, alg: 'v4.public', public_key: `k4.public.${jwk.x}` },
    jwk: { ...jwk, kid, use: 'sig', alg: 'EdDSA' },
    token: async (claims) => {
      const secretKey = await SecretKeyFromCryptoKey(privateKey.toCryptoKey('Ed25519', true, ['sign']));
      return paseto.Sign(secretKey, claims, { footer: utf8.encode(footer), addIssuedAt: false });
    },
    rawToken: (message, footerContent) => {
      const bytes = Buffer.from(message);
      const footerBytes = Buffer.from(footerContent ?? '');
      const signature = sign(
        null,
        preAuthEncode([utf8.encode('v4.public.'), bytes, footerBytes, new Uint8Array()]),
        privateKey,
      );
      const body = Buffer.concat([bytes, signature]).toString('base64url');
      return `v4.public.${body}${footerContent === null ? '' : `.${footerBytes.toString('base64url')}`}`;
    },
  };
}

/** The key endpoint of the identity provider on a local port, with injectable faults. */
export async function startProvider(...signers: Signer[]) {
  const provider = {
    url: '',
    requests: 0,
    document: { keys: signers.map(({ entry }) => entry) } as unknown,
    /** Set to respond with something other than the document. */
    fault: null as ((response: ServerResponse) => void) | null,
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
  const server = createServer((_request, response) => {
    provider.requests += 1;
    if (provider.fault) return provider.fault(response);
    response.setHeader('content-type', 'application/json').end(JSON.stringify(provider.document));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  provider.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return provider;
}

export type Provider = Awaited<ReturnType<typeof startProvider>>;

/**
 * Settings of `authenticate` for this provider. Caches are keyed by this object, so each test gets a new one.
 */
export const settingsFor = (provider: { url: string }) => ({
  SERVICE_NAME: 'branchgate',
  BASE_URL: 'https://api.example.com',
  JWT_KEYS: [{ id: '1', bytes: new Uint8Array(32).fill(7) }],
  IDP_URL: provider.url,
  BASE_IDP_KEY_ENDPOINT: `${provider.url}/v1/keys/paseto-v4-public`,
});
