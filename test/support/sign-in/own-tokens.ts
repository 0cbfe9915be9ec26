import { randomUUID } from 'node:crypto';
import { decodeJwt, decodeProtectedHeader, SignJWT, UnsecuredJWT } from 'jose';
import { keyDocument } from '../../../dev/identity-provider/key-ring.ts';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { type OwnClaims, signOwnToken } from '../../../edge/authentication/own-tokens.ts';

/** A gateway of the local stack. */
interface Site {
  url: string;
  devDir: string;
}

interface AccessOptions {
  tenant: string;
  role?: string;
  /** Id of the account; left out, of none. */
  account?: string;
  /** Seconds; negative for a token that has expired. */
  expiresIn?: number;
}

interface PreAuthOptions extends Partial<Pick<OwnClaims<'pre_auth'>, 'step'>> {
  account?: string;
  expiresIn?: number;
}

type MakeToken = () => Promise<string>;

/** Tokens of the gateway's own, made with its key, and such as somebody without the key could make. */
export function ownTokens({ url, devDir }: Site) {
  const folder = devFolder(devDir);
  const [id = '', encoded = ''] = gatewaySecrets(folder).JWT_KEYS.split(':');
  const settings = {
    SERVICE_NAME: 'branchgate',
    BASE_URL: url,
    JWT_KEYS: [{ id, bytes: new Uint8Array(Buffer.from(encoded, 'base64')) }],
  };
  const life = (seconds = 900) => ({
    issuedAt: new Date(),
    expiresAt: new Date(Date.now() + seconds * 1000),
  });
  const email = 'own@acme.example';

  const access = ({ tenant, role = 'owner', account = randomUUID(), expiresIn }: AccessOptions) => {
    const scp = ['branchgate:read', 'branchgate:write'];
    const claims = { sub: account, email, role, scp, tenant_id: tenant, sid: randomUUID() };
    return signOwnToken(settings, 'access', claims, life(expiresIn));
  };
  const refresh = () => {
    const claims = { sub: randomUUID(), sid: randomUUID(), jti: randomUUID() };
    return signOwnToken(settings, 'refresh', claims, life());
  };
  const preAuth = ({ step = 'setup', account = randomUUID(), expiresIn }: PreAuthOptions = {}) => {
    const user = { issuer: url, gid: account, email };
    const claims = { user, step, first_factor: 'password' as const, sealed: null, jti: randomUUID() };
    return signOwnToken(settings, 'pre_auth', claims, life(expiresIn));
  };

  /** What each way of forging makes of a good token (RFC 8725 section 2). */
  async function forgeries(good: MakeToken): Promise<[string, MakeToken][]> {
    const [published] = (await keyDocument(folder.identityProvider, new Date())).keys;
    if (!published) throw new Error('the provider has no key');
    const { kid: providersId, public_key } = published;
    const spellings = {
      'its bytes': Buffer.from(public_key.replace('k4.public.', ''), 'base64url'),
      'its text': Buffer.from(public_key),
    };
    const signedWith = (kid: string, bytes: Uint8Array) => async () =>
      new SignJWT(decodeJwt(await good())).setProtectedHeader({ alg: 'HS256', kid }).sign(bytes);
    return [
      ['alg none', async () => new UnsecuredJWT(decodeJwt(await good())).encode()],
      [
        'alg none beside a good signature',
        async () => {
          const token = await good();
          const header = JSON.stringify({ ...decodeProtectedHeader(token), alg: 'none' });
          return token.replace(/^[^.]+/, Buffer.from(header).toString('base64url'));
        },
      ],
      ...Object.entries(spellings).flatMap(([spelling, bytes]): [string, MakeToken][] => [
        [`HS256 with the provider's public key, ${spelling}, under our key's id`, signedWith(id, bytes)],
        [
          `HS256 with the provider's public key, ${spelling}, under its own id`,
          signedWith(providersId, bytes),
        ],
      ]),
    ];
  }

  return { access, refresh, preAuth, forgeries };
}
