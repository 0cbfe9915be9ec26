import { z } from 'zod';
import { Moment } from '../moment.ts';
import { PROJECT_EXTENSIONS_MAX } from '../project/extensions.ts';

const Bytes = z.int().nonnegative();
const Time = z.iso.datetime().nullable();

/** What an agent reports about its host. What an agent of the last release does not report is null. */
export const HostDescription = z.strictObject({
  agent_version: z.string(),
  postgres_version: z.string(),
  pooler_version: z.string(),
  /** `reflink`: a clone shares its blocks with the source; `copy`: every block is copied. */
  clone_method: z.enum(['reflink', 'copy']),
  /** Size of the volume with PostgreSQL's data. */
  disk_bytes: Bytes.nullable(),
  /**
   * The largest database, and the pieces in which it lies; null where the file system does not report them.
   */
  largest_source: z.strictObject({ bytes: Bytes, extents: Bytes.nullable() }).nullable(),
  /** Clones of snapshots that are ready for the next branches. */
  spares: z.int().nonnegative().nullable(),
  /** Null: none. */
  last_backup_at: Time,
  last_archived_at: Time,
  /** The earliest time to which databases can be recovered; null: this host keeps no past. */
  recoverable_from: Moment.nullable(),
  /** Hours for which it keeps what was deleted, in base copies and archived WAL; null: it keeps no past. */
  past_hours: z.int().nonnegative().nullable(),
  /** Since when drills could prove its recoveries; null: it keeps no past. */
  drills_since: Time,
  /** DNS names that the certificates of both servers have, wildcards among them. */
  certificate_names: z.array(z.string().max(255)).max(100).nullable(),
  /** Extensions that a project can be created with. */
  project_extensions: z
    .array(z.strictObject({ name: z.string().max(63), version: z.string().max(100) }))
    .max(PROJECT_EXTENSIONS_MAX)
    .nullable(),
  /** A sentence for each fault of the set-up. */
  warnings: z.array(z.string()),
});
export type HostDescription = z.output<typeof HostDescription>;
