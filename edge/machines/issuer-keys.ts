import type { JWK } from 'jose';
import { z } from 'zod';
import { fetchDocument, KEY_FETCH_MS } from '../authentication/fetch-keys.ts';
import { KeyCache } from '../authentication/key-cache.ts';
import { BoundedMap } from '../bounded-map.ts';
import { issuerAddressProblem } from './issuer-address.ts';

const CACHED_ISSUERS = 1_000;
const CONFIGURATION = '/.well-known/openid-configuration';
/** 2048 bits in base64url; jose refuses shorter RSA keys too. */
const MODULUS_MIN = 342;

const Configuration = z.object({ issuer: z.string(), jwks_uri: z.string() });
const KeySet = z.object({ keys: z.array(z.unknown()).max(100) });

const ofSignatures = { kid: z.string().min(1), use: z.literal('sig').optional() };
const keyOf = <K extends z.ZodRawShape, A extends string>(alg: A, members: K) =>
  z
    .object({ ...ofSignatures, ...members, alg: z.literal(alg).optional() })
    .transform((key) => ({ ...key, alg }));

/** The members of a public key only. A symmetric key is none of these. */
const PublicJwk = z.union([
  keyOf('RS256', { kty: z.literal('RSA'), n: z.string().min(MODULUS_MIN), e: z.string() }),
  keyOf('ES256', { kty: z.literal('EC'), crv: z.literal('P-256'), x: z.string(), y: z.string() }),
  keyOf('EdDSA', { kty: z.literal('OKP'), crv: z.literal('Ed25519'), x: z.string() }),
]);

/** The key of an issuer, with the only algorithm it may be used with. */
export type IssuerKey = JWK & z.output<typeof PublicJwk>;
type IssuerKeys = ReadonlyMap<string, IssuerKey>;

/** Both documents of an issuer (OpenID Connect Discovery 1.0), within the time of one. @throws Error */
async function fetchIssuerKeys(issuer: string, isLocal: boolean): Promise<IssuerKeys> {
  const signal = AbortSignal.timeout(KEY_FETCH_MS);
  const documentAt = (address: string) => {
    const problem = issuerAddressProblem(address, isLocal);
    if (problem) throw new Error(`the address ${problem}`);
    return fetchDocument(new URL(address), signal);
  };
  const configuration = Configuration.parse(await documentAt(issuer.replace(/\/$/, '') + CONFIGURATION));
  if (configuration.issuer !== issuer) throw new Error('the configuration is of another issuer');
  const { keys } = KeySet.parse(await documentAt(configuration.jwks_uri));
  const usable = keys.flatMap((key) => PublicJwk.safeParse(key).data ?? []);
  return new Map(usable.map((key) => [key.kid, key as IssuerKey]));
}

const areSame = (one: IssuerKeys, other: IssuerKeys) =>
  JSON.stringify([...one]) === JSON.stringify([...other]);

const caches = new BoundedMap<string, KeyCache<IssuerKey>>(CACHED_ISSUERS);

/** The keys of an issuer, cached as those of the identity provider. */
export function issuerKeys(issuer: string, isLocal: boolean): KeyCache<IssuerKey> {
  const cache =
    caches.get(issuer) ?? new KeyCache({ fetch: () => fetchIssuerKeys(issuer, isLocal), areSame });
  caches.set(issuer, cache);
  return cache;
}
