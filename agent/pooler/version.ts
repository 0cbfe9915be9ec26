import type { Session } from '../postgres/connect.ts';

/** PgBouncer's version, such as `1.25.2`. */
export async function readPoolerVersion(console: Session): Promise<string> {
  const { rows } = await console.query<{ version: string }>('SHOW VERSION');
  return (rows[0]?.version ?? '').replace(/^PgBouncer /, '');
}

/** Whether PgBouncer limits the clients of one database (`max_db_client_connections`). */
export const countsClients = (version: string) => atLeast(version, [1, 24, 0]);

/** Whether a version such as `1.25.2` is `wanted` or later. */
export function atLeast(version: string, wanted: readonly number[]): boolean {
  const parts = partsOf(version);
  const differing = wanted.findIndex((number, index) => (parts[index] ?? 0) !== number);
  return differing === -1 || (parts[differing] ?? 0) > (wanted[differing] ?? 0);
}

/** The oldest of these versions. */
export const oldest = (versions: readonly string[]) =>
  versions.reduce((one, other) => (atLeast(one, partsOf(other)) ? other : one));

const partsOf = (version: string) => version.split('.').map((part) => Number.parseInt(part, 10));
