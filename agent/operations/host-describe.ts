import manifest from '../../package.json' with { type: 'json' };
import type { HostDescription } from '../../shared/protocol/host-description.ts';
import { diskSize } from '../guard/volumes.ts';
import type { Host } from '../host.ts';
import { examine } from '../maintenance/examine.ts';

/** Versions, disk and backups of this host, and a sentence for each fault of its set-up. */
export async function describeHost(host: Host): Promise<HostDescription> {
  const [{ findings, postgresVersion, poolerVersion, backup }, disk_bytes] = await Promise.all([
    examine(host),
    diskSize(host.settings.PGDATA_DIR),
  ]);
  return {
    agent_version: manifest.version,
    postgres_version: postgresVersion,
    pooler_version: poolerVersion,
    clone_method: host.cloneMethod,
    disk_bytes,
    largest_source: host.largestSource(),
    last_backup_at: backup.lastBackupAt?.toISOString() ?? null,
    last_archived_at: backup.lastArchivedAt?.toISOString() ?? null,
    warnings: findings.map(({ sentence }) => sentence),
  };
}
