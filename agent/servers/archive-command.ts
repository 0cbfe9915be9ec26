/** The command of the agent's program that stores a file of the WAL for recoveries. */
export const ARCHIVE_WAL = 'archive-wal';
