import ipaddr from 'ipaddr.js';
import { isPlainAddress } from '../../shared/cidr.ts';
import type { LimitName } from './limits.ts';

/** What a request is counted against. */
export interface Bucket {
  /** Name of the counting object: a JSON array, so that no free text in it can pass for another bucket. */
  bucket: string;
  limit: LimitName;
}

/** `path` as Hono's `req.path` gives it: percent-decoded, so that no second spelling of an id has its own count. */
interface Asked {
  method: string;
  path: string;
}

/** How a user is known (spec 5.9; never by e-mail). */
export interface UserKey {
  issuer: string;
  gid: string;
}

const PROJECT_PATH =
  /^(?:\/api)?\/v1\/projects\/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:\/|$)/i;

const READING_METHODS: readonly string[] = ['GET', 'HEAD'];

/** One customer has at least a /64 of IPv6 and can use each of its addresses. */
const IPV6_CUSTOMER_PREFIX = 64;

/** What a request is charged to, by who makes it. An address is that of `CF-Connecting-IP`, null without one. */
export const bucketOf = {
  tenant: (tenantId: string, asked: Asked): Bucket => ({
    bucket: tenantBucket(tenantId, asked.path),
    limit: readsOrWrites(asked),
  }),
  platform: (asked: Asked): Bucket => ({ bucket: named('platform'), limit: readsOrWrites(asked) }),
  public: (address: string | null): Bucket => ({ bucket: addressBucket(address), limit: 'public' }),
  /** Apart from clients of the same address, so that they can't keep a host from coming back. */
  agent: (address: string | null): Bucket => ({ bucket: addressBucket(address), limit: 'agents' }),
  failedAuthentication: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'failed_authentication',
  }),
  rotation: (branchId: string): Bucket => ({ bucket: named('branch', branchId), limit: 'rotations' }),
  /** A bearer who belongs to no tenant. */
  user: ({ issuer, gid }: UserKey, asked: Asked): Bucket => ({
    bucket: named('user', issuer, gid),
    limit: readsOrWrites(asked),
  }),
  wrongPassword: (email: string): Bucket => ({ bucket: named('email', email), limit: 'wrong_passwords' }),
  wrongPasswordFrom: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'wrong_passwords_of_address',
  }),
  mailFrom: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'mails_of_address',
  }),
  wrongCodeFrom: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'wrong_codes_of_address',
  }),
  secondFactorTry: (preAuthId: string): Bucket => ({
    bucket: named('pre_auth', preAuthId),
    limit: 'second_factor_tries',
  }),
  wrongSecondFactor: ({ issuer, gid }: UserKey): Bucket => ({
    bucket: named('user', issuer, gid),
    limit: 'wrong_second_factors',
  }),
  /** @param hash of what is used, if it is a secret: the names of objects are kept */
  use: (of: 'state' | 'code' | 'pre_auth', hash: string): Bucket => ({
    bucket: named(of, hash),
    limit: 'single_use',
  }),
};

const named = (...parts: string[]): string => JSON.stringify(parts);

export const isReading = (method: string): boolean => READING_METHODS.includes(method);

const readsOrWrites = ({ method }: Asked): LimitName => (isReading(method) ? 'reads' : 'writes');

/** The tenant is part of a project's bucket: another tenant that knows the project's id can't use it up. */
function tenantBucket(tenantId: string, path: string): string {
  const projectId = PROJECT_PATH.exec(path)?.[1];
  return projectId ? named('project', tenantId, projectId.toLowerCase()) : named('tenant', tenantId);
}

function addressBucket(address: string | null): string {
  if (address === null || !isPlainAddress(address)) return named('address', 'unknown');
  const parsed = ipaddr.process(address);
  if (parsed.kind() === 'ipv4') return named('address', parsed.toString());
  const network = ipaddr.IPv6.networkAddressFromCIDR(`${parsed}/${IPV6_CUSTOMER_PREFIX}`);
  return named('address', `${network}/${IPV6_CUSTOMER_PREFIX}`);
}
