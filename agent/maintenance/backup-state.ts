import type { Queryable } from '../postgres/connect.ts';

/** How far this host is backed up, as PostgreSQL knows it, whatever program makes the backups. */
export interface BackupState {
  /** Whether finished segments of the WAL go to an archive. */
  archives: boolean;
  lastArchivedAt: Date | null;
  /** When the oldest segment was finished that waits for the archive; null if none does. */
  waitingSince: Date | null;
  /** The end of the last backup of the data, which PostgreSQL notes in a file next to the WAL. */
  lastBackupAt: Date | null;
}

export async function readBackupState(db: Queryable): Promise<BackupState> {
  const { rows } = await db.query<{
    archives: boolean;
    last_archived: Date | null;
    waiting: Date | null;
    last_backup: Date | null;
  }>(
    `SELECT current_setting('archive_mode') <> 'off' AS archives,
            (SELECT last_archived_time FROM pg_stat_archiver) AS last_archived,
            (SELECT min(modification) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready') AS waiting,
            (SELECT max(modification) FROM pg_ls_waldir() WHERE name LIKE '%.backup') AS last_backup`,
  );
  const [row] = rows;
  return {
    archives: row?.archives ?? false,
    lastArchivedAt: row?.last_archived ?? null,
    waitingSince: row?.waiting ?? null,
    lastBackupAt: row?.last_backup ?? null,
  };
}

/** Whether it is known, and no longer ago than this. */
export const isWithin = (at: Date | null, milliseconds: number, now = Date.now()): boolean =>
  at !== null && now - at.getTime() <= milliseconds;
