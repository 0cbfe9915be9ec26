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
  /** IDs of the account and of its session; by default random ones, which the gateway refuses. */
  account?: string;
  session?: string;
  /** Seconds; negative for an expired token. */
  expiresIn?: number;
}

interface PreAuthOptions extends Partial<Pick<OwnClaims<'pre_auth'>, 'step'>> {
  account?: string;
  expiresIn?: number;
}

type MakeToken = () => Promise<string>;

/** Tokens that are signed with the gateway's key, and forgeries that an attacker could make without it. */
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

  const access = ({ tenant, role = 'owner', account = randomUUID(), session, expiresIn }: AccessOptions) => {
    const scp = ['branchgate:read', 'branchgate:write'];
    const claims = { sub: account, email, role, scp, tenant_id: tenant, sid: session ?? randomUUID() };
    return signOwnToken(settings, 'access', claims, life(expiresIn));
  };
  const refresh = () => {
    const claims = { sub: randomUUID(), sid: randomUUID(), jti: randomUUID() };
    return signOwnToken(settings, 'refresh', claims, life());
  };
  const preAuth = ({ step = 'setup', account = randomUUID(), expiresIn }: PreAuthOptions = {}) => {
    const user = { issuer: url, gid: account, email };
    const claims = {
      user,
      step,
      first_factor: 'password' as const,
      sealed: null,
      version: 0,
      jti: randomUUID(),
    };
    return signOwnToken(settings, 'pre_auth', claims, life(expiresIn));
  };

  /** Forgeries of a valid token (RFC 8725 section 2), by name. */
  async function forgeries(valid: MakeToken): Promise<[string, MakeToken][]> {
    const [published] = (await keyDocument(folder.identityProvider, new Date())).keys;
    if (!published) throw new Error('the provider has no key');
    const { kid: providersId, public_key } = published;
    const encodings = {
      'its bytes': Buffer.from(public_key.replace('k4.public.', ''), 'base64url'),
      'its text': Buffer.from(public_key),
    };
    const signedWith = (kid: string, bytes: Uint8Array) => async () =>
      new SignJWT(decodeJwt(await valid())).setProtectedHeader({ alg: 'HS256', kid }).sign(bytes);
    return [
      ['alg none', async () => new UnsecuredJWT(decodeJwt(await valid())).encode()],
      [
        'alg none with a valid signature',
        async () => {
          const token = await valid();
          const header = JSON.stringify({ ...decodeProtectedHeader(token), alg: 'none' });
          return token.replace(/^[^.]+/, Buffer.from(header).toString('base64url'));
        },
      ],
      ...Object.entries(encodings).flatMap(([encoding, bytes]): [string, MakeToken][] => [
        [`HS256 with the provider's public key, ${encoding}, under our key's id`, signedWith(id, bytes)],
        [
          `HS256 with the provider's public key, ${encoding}, under its own id`,
          signedWith(providersId, bytes),
        ],
      ]),
    ];
  }

  return { access, refresh, preAuth, forgeries };
}
