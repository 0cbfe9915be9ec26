import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { ProviderRow } from '../database/company-schema.ts';

/** What a provider says about the person who signed in: an ID token's claims, or what GitHub's API returns. */
export type Claims = Readonly<Record<string, unknown>>;

/** The domain of an address, in lower case. */
export const domainOf = (email: string): string => email.slice(email.lastIndexOf('@') + 1).toLowerCase();

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/** A member by its name, or by names with dots between them, as `realm_access.roles`. */
function memberOf(claims: Record<string, unknown>, name: string): unknown {
  if (Object.hasOwn(claims, name)) return claims[name];
  const dot = name.indexOf('.');
  if (dot === -1) return undefined;
  const outer = name.slice(0, dot);
  const inner = Object.hasOwn(claims, outer) ? claims[outer] : undefined;
  return isObject(inner) ? memberOf(inner, name.slice(dot + 1)) : undefined;
}

const VALUES_MAX = 500;
const isText = (value: unknown): value is string => typeof value === 'string' && value.length <= 256;

/** The values of the role claim: a string or a list of strings; everything else counts as none. */
export function roleValues({ roleClaim }: Pick<ProviderRow, 'roleClaim'>, claims: Claims): string[] {
  if (roleClaim === null) return [];
  const value = memberOf({ ...claims }, roleClaim);
  return (Array.isArray(value) ? value : [value]).filter(isText).slice(0, VALUES_MAX);
}

/** The role of the first entry of `roles` that is among the values, otherwise the default role. */
export const roleOf = (
  { roles, defaultRole }: Pick<ProviderRow, 'roles' | 'defaultRole'>,
  values: readonly string[],
): string => roles.find(([value]) => values.includes(value))?.[1] ?? defaultRole;

/**
 * Microsoft Entra has no `email_verified`. Its issuer contains the directory of the person (`tid`), which is
 * the company's own, so that the verified domain of the tenant counts instead.
 */
const isOfEntra = ({ tid, iss, email_verified }: Claims): boolean =>
  email_verified === undefined &&
  typeof tid === 'string' &&
  tid.length >= 8 &&
  typeof iss === 'string' &&
  iss.split('/').includes(tid);

const refused = (reason: string) => fail<Failure>({ code: 'SSO_ADDRESS_REFUSED', reason });

/** Subjects are at most 255 characters long (OpenID Connect Core 1.0, section 2). */
const SUBJECT_MAX = 255;
/** Mails of the gateway name these addresses, so they have no character of a URL or of a header (RFC 5322 section 3.2.3). */
const ADDRESS = /^[\p{L}\p{M}\p{N}!#$%&'*+=?^_`{|}~.-]{1,64}@[^\s@]{1,253}$/u;

/** Decides whether a text is an address in one of these domains. */
export const isAddressIn = (domains: readonly string[], text: string): boolean =>
  ADDRESS.test(text) && domains.includes(domainOf(text));

/**
 * The person that the claims describe.
 * @param domains the verified domains of the provider
 * @returns or SSO_ADDRESS_REFUSED for an address that is missing, not verified, or of another domain
 */
export function personOf(
  provider: Pick<ProviderRow, 'roleClaim'>,
  domains: readonly string[],
  claims: Claims,
): Result<{ subject: string; email: string; claimValues: string[] }, Failure> {
  const { sub: subject } = claims;
  if (typeof subject !== 'string' || subject === '' || subject.length > SUBJECT_MAX)
    return refused('no subject');
  const entra = isOfEntra(claims);
  const address = claims.email ?? (entra ? claims.preferred_username : undefined);
  if (typeof address !== 'string' || !ADDRESS.test(address)) return refused('no e-mail address');
  const isVerified = claims.email_verified === true || claims.email_verified === 'true' || entra;
  if (!isVerified) return refused('the address is not verified');
  const email = address.toLowerCase();
  if (!domains.includes(domainOf(email))) return refused('the address is outside of the verified domains');
  return ok({ subject, email, claimValues: roleValues(provider, claims) });
}
