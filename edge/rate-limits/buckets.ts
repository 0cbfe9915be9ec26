import ipaddr from 'ipaddr.js';
import { isPlainAddress } from '../../shared/cidr.ts';
import type { Machine } from '../database/column-types.ts';
import type { LimitName } from './limits.ts';

/** The counter that a request is counted against. */
export interface Bucket {
  /** Name of the `RateLimiter` object: a JSON array, so that free text in it cannot name another bucket. */
  bucket: string;
  limit: LimitName;
}

/** `path` is Hono's percent-decoded `req.path`, so that differently encoded ids share one count. */
interface RequestLine {
  method: string;
  path: string;
}

/** The identity of a user (specification 5.9); never the e-mail address. */
export interface UserKey {
  issuer: string;
  gid: string;
}

const PROJECT_PATH =
  /^(?:\/api)?\/v1\/projects\/([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})(?:\/|$)/i;

const READING_METHODS: readonly string[] = ['GET', 'HEAD'];

/** A customer usually has at least a /64 of IPv6 and can use all of its addresses. */
const IPV6_CUSTOMER_PREFIX = 64;

/** The bucket of each kind of request. Addresses are those of `CF-Connecting-IP`; null if it is missing. */
export const bucketOf = {
  tenant: (tenantId: string, request: RequestLine): Bucket => ({
    bucket: tenantBucket(tenantId, request.path),
    limit: readsOrWrites(request),
  }),
  /** A part of the tenant's, so that one machine does not use up what its project has. */
  machine: ({ type, id }: Machine, request: RequestLine): Bucket => ({
    bucket: named(type, id, projectOf(request.path) ?? ''),
    limit: isReading(request.method) ? 'machine_reads' : 'machine_writes',
  }),
  platform: (request: RequestLine): Bucket => ({ bucket: named('platform'), limit: readsOrWrites(request) }),
  public: (address: string | null): Bucket => ({ bucket: addressBucket(address), limit: 'public' }),
  /** Separate from clients of the same address, so that they cannot block the reconnection of a host. */
  agent: (address: string | null): Bucket => ({ bucket: addressBucket(address), limit: 'agents' }),
  failedAuthentication: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'failed_authentication',
  }),
  failedPlatformSecret: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'failed_platform_secret',
  }),
  /** The tenant is part of the key, so that a token of another one cannot use up what the branch has. */
  sql: (tenantId: string, branchId: string): Bucket => ({
    bucket: named('sql', tenantId, branchId),
    limit: 'sql',
  }),
  wrongSqlPassword: (branchId: string, address: string | null): Bucket => ({
    bucket: named('sql', branchId, addressBucket(address)),
    limit: 'wrong_sql_passwords',
  }),
  rotation: (branchId: string): Bucket => ({ bucket: named('branch', branchId), limit: 'rotations' }),
  /** For a bearer without a tenant. */
  user: ({ issuer, gid }: UserKey, request: RequestLine): Bucket => ({
    bucket: named('user', issuer, gid),
    limit: readsOrWrites(request),
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
  invitations: (tenantId: string): Bucket => ({
    bucket: named('tenant', tenantId),
    limit: 'invitations',
  }),
  /** Apart, because anybody can ask for a sign-up. @param email in lower case */
  unaskedMail: (kind: 'sign_up' | 'invitation', email: string): Bucket => ({
    bucket: named('mailbox', kind, mailboxOf(email)),
    limit: 'unasked_mails',
  }),
  ownerNotices: (tenantId: string): Bucket => ({ bucket: named('tenant', tenantId), limit: 'owner_notices' }),
  alerts: (tenantId: string): Bucket => ({ bucket: named('tenant', tenantId), limit: 'alerts' }),
  clientRegistration: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'client_registrations',
  }),
  clientDocument: (userId: string): Bucket => ({
    bucket: named('user_id', userId),
    limit: 'client_documents',
  }),
  clientDocumentFrom: (address: string | null): Bucket => ({
    bucket: addressBucket(address),
    limit: 'client_documents_of_address',
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
  /** @param hash of the cookie */
  pageRenewal: (hash: string): Bucket => ({ bucket: named('page', hash), limit: 'page_renewals' }),
  /**
   * @param hash of the value; a hash because the names of objects are stored, and the value can be a secret
   */
  use: (of: 'state' | 'code' | 'pre_auth' | 'id_token', hash: string): Bucket => ({
    bucket: named(of, hash),
    limit: 'single_use',
  }),
};

/** The object that counts the open streams of a tenant. @param action that they take */
export const streamsBucket = (tenantId: string, action: 'events.read' | 'metrics.read'): string =>
  action === 'events.read' ? named('streams', tenantId) : named('streams', tenantId, action);

/** Many services deliver `a.da+x` to the mailbox of `ada`. */
function mailboxOf(email: string): string {
  const at = email.lastIndexOf('@');
  const [name = ''] = email.slice(0, at).split('+');
  return name.replaceAll('.', '') + email.slice(at);
}

const named = (...parts: string[]): string => JSON.stringify(parts);

export const isReading = (method: string): boolean => READING_METHODS.includes(method);

const readsOrWrites = ({ method }: RequestLine): LimitName => (isReading(method) ? 'reads' : 'writes');

const projectOf = (path: string) => PROJECT_PATH.exec(path)?.[1]?.toLowerCase();

/**
 * A project's bucket includes the tenant, so that another tenant that knows the project id cannot exhaust it.
 */
function tenantBucket(tenantId: string, path: string): string {
  const projectId = projectOf(path);
  return projectId ? named('project', tenantId, projectId) : named('tenant', tenantId);
}

function addressBucket(address: string | null): string {
  if (address === null || !isPlainAddress(address)) return named('address', 'unknown');
  const parsed = ipaddr.process(address);
  if (parsed.kind() === 'ipv4') return named('address', parsed.toString());
  const network = ipaddr.IPv6.networkAddressFromCIDR(`${parsed}/${IPV6_CUSTOMER_PREFIX}`);
  return named('address', `${network}/${IPV6_CUSTOMER_PREFIX}`);
}
