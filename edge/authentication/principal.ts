import { type KeyPermission, type Machine, ROLES, type Role } from '../database/column-types.ts';

/** The bearer, as described by a verified token. */
export interface Identity {
  /** URL of the identity provider. A user is identified by issuer and `gid`, never by e-mail. */
  issuer: string;
  gid: string;
  email: string;
  /**
   * After mapping (specification 5.7): one of `ROLES`, or an unknown role of the provider without
   * permissions.
   */
  role: string;
  /** The scopes in the token; only `<service>:read` and `<service>:write` have an effect. */
  scopes: readonly string[];
  /** The `<service>` whose scopes count. */
  service: string;
  tenantId: string | null;
  /** `iat`, else `nbf`, else the epoch. Orders tokens when the tenant changes. */
  issuedAt: Date;
  /** `exp`. What outlasts its request, such as a stream, ends at this time. */
  expiresAt: Date;
  /** The session of the token; only the gateway's own tokens have one. */
  sessionId?: string;
  /** The identity provider of the tenant by which a person signed in. */
  providerId?: string;
}

/** What a machine is limited to, in addition to its role. */
export interface MachineLimits extends Machine {
  /** The present role of the user who created it, which limits the projects in reach. */
  creatorRole: string;
  /** Of a key; a workload has none. */
  permissions: readonly KeyPermission[];
  /** Null: every project that its role reaches. */
  projectId: string | null;
  /** Null: every branch. */
  branchPattern: string | null;
}

/** A bearer whose user, organization and membership exist (specification 5.9). */
export interface Principal extends Identity {
  tenantId: string;
  /** The user; for a machine the user who created it, in whose name it acts. */
  userId: string;
  machine?: MachineLimits;
}

/** Specification 5.7; the first matching row applies. */
const MAPPING: readonly (readonly [matches: (given: string) => boolean, role: Role])[] = [
  [(given) => given.endsWith('.owner'), 'owner'],
  [(given) => given.endsWith('.admin'), 'admin'],
  [(given) => given.includes('developer'), 'operator'],
];

/** Maps a role of the identity provider to ours; unknown roles are returned unchanged. */
export const mapRole = (given: string): string => MAPPING.find(([matches]) => matches(given))?.[1] ?? given;

export const isRole = (role: string): role is Role => (ROLES as readonly string[]).includes(role);

/** The lesser of two roles. A role without permissions is the least. */
export function lesserRole(one: string, other: string): string {
  if (!isRole(one)) return one;
  if (!isRole(other)) return other;
  return ROLES.indexOf(one) > ROLES.indexOf(other) ? one : other;
}
