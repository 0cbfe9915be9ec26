import { eq, sql } from 'drizzle-orm';
import type { Database } from '../database/database.ts';
import { hosts } from '../database/schema.ts';

/**
 * The `system_identifier` of the cluster that the host's records describe: the first one seen, until an operator
 * accepts another (`docs/decisions/0015-another-cluster.md`).
 */
export async function clusterOnRecord(db: Database, hostId: string, seen: string): Promise<string | null> {
  const [host] = await db
    .update(hosts)
    .set({ systemIdentifier: sql`coalesce(${hosts.systemIdentifier}, ${seen})` })
    .where(eq(hosts.id, hostId))
    .returning({ systemIdentifier: hosts.systemIdentifier });
  return host?.systemIdentifier ?? null;
}
