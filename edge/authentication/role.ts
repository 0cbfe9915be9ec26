export const ROLES = ['owner', 'admin', 'operator', 'viewer'] as const;
export type Role = (typeof ROLES)[number];

/** Spec 5.7; the first row that fits decides. */
const MAPPING: readonly (readonly [fits: (given: string) => boolean, role: Role])[] = [
  [(given) => given.endsWith('.owner'), 'owner'],
  [(given) => given.endsWith('.admin'), 'admin'],
  [(given) => given.includes('developer'), 'operator'],
];

/** Our role for the identity provider's; a role of no row stays as it is. */
export const mapRole = (given: string): string => MAPPING.find(([fits]) => fits(given))?.[1] ?? given;

export const isRole = (role: string): role is Role => (ROLES as readonly string[]).includes(role);
