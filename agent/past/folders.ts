import { join } from 'node:path';
import { type AgentSettings, pastFolder } from '../process/settings.ts';

/** The past of a host, in PAST_DIR. Nobody but PostgreSQL's user may read it: it has the data of all tenants. */
export interface PastFolders {
  root: string;
  /** Segments of the WAL, which `archive-wal` stores. Can be a volume of its own. */
  wal: string;
  /** Base copies, which share blocks with PGDATA_DIR. */
  bases: string;
  /** Copies from which something is being recovered. Each can be removed at any time. */
  recoveries: string;
  /** Records and results of drills: one file for each project. */
  drills: string;
}

export const foldersIn = (root: string): PastFolders => ({
  root,
  wal: join(root, 'wal'),
  bases: join(root, 'bases'),
  recoveries: join(root, 'recoveries'),
  drills: join(root, 'drills'),
});

export const pastFolders = (settings: Pick<AgentSettings, 'PAST_DIR' | 'PGDATA_DIR'>): PastFolders =>
  foldersIn(pastFolder(settings));
