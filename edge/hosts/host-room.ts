import { type SQL, sql } from 'drizzle-orm';
import { quotaBytes } from '../../shared/project/storage-quota.ts';
import { hosts, projects } from '../database/schema.ts';
import type { Settings } from '../settings.ts';

/**
 * Whether the host's free disk is enough for this quota and for what the host has promised already: the unused part of
 * the quotas of its other projects. True while its free disk is unknown.
 * @param hostId a value or a column
 * @param projectId the project of the quota, whose present quota does not count
 */
export const hasRoomOn = (
  { STORAGE_OVERCOMMIT }: Pick<Settings, 'STORAGE_OVERCOMMIT'>,
  hostId: SQL | string,
  projectId: string,
  quotaGib: number,
): SQL => {
  const promised = sql`(
    select coalesce(sum(max(placed.storage_quota_gib * ${quotaBytes(1)} - placed.storage_used_bytes, 0)), 0)
    from ${projects} as placed
    where placed.host_id = ${hostId} and placed.status <> 'failed' and placed.id <> ${projectId})`;
  const room = sql`(select host.free_bytes * ${STORAGE_OVERCOMMIT} from ${hosts} as host where host.id = ${hostId})`;
  return sql`coalesce(${room} >= ${promised} + ${quotaBytes(quotaGib)}, 1)`;
};
