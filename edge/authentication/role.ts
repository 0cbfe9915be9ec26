export const ROLES = ['owner', 'admin', 'operator', 'viewer'] as const;
export type Role = (typeof ROLES)[number];

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
