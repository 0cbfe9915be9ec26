import { createHash } from 'node:crypto';

export interface Account {
  email: string;
  name: string;
  tenant?: string;
  role: string;
}

/**
 * The local accounts: one for every role of the gateway, one of a second organization, and one without any.
 */
export const ACCOUNTS: readonly Account[] = [
  { email: 'ada@example.com', name: 'Ada Lovelace', tenant: 'acme', role: 'branchgate.owner' },
  { email: 'grace@example.com', name: 'Grace Hopper', tenant: 'acme', role: 'branchgate.admin' },
  { email: 'linus@example.com', name: 'Linus Example', tenant: 'acme', role: 'developer' },
  { email: 'vera@example.com', name: 'Vera Viewer', tenant: 'acme', role: 'viewer' },
  { email: 'edsger@example.com', name: 'Edsger Dijkstra', tenant: 'globex', role: 'branchgate.owner' },
  { email: 'alan@example.com', name: 'Alan Turing', role: 'developer' },
];

/** The password of every account. This provider is reachable from the local machine only. */
export const LOCAL_PASSWORD = 'branchgate';

export const accountOf = (email: string) => ACCOUNTS.find((account) => account.email === email.toLowerCase());

/**
 * `gid` (specification 2.8): a UUID derived from the address, so that manually created tokens name the same
 * user.
 */
export function globalUserId(email: string): string {
  const hex = createHash('sha256').update(`branchgate-dev:${email.toLowerCase()}`).digest('hex');
  // RFC 9562 section 5.8: version 8 (custom), variant 10.
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
