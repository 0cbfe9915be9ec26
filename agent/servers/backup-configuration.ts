import { PLATFORM_ROLE } from '../postgres/connect.ts';
import { ARCHIVE_WAL, STORE_WAL } from './archive-command.ts';
import type { ServerLayout } from './configuration.ts';

/** pgBackRest's name for this host's cluster. */
const STANZA = 'branchgate';

/** Age above which `doctor` reports the last backup; the timer makes one every day. */
export const BACKUP_WITHIN_HOURS = 36;

/** Time for which a finished segment of the WAL may wait for the archive before `doctor` reports it. */
export const ARCHIVED_WITHIN_MINUTES = 15;

/**
 * Part of `postgresql.conf`, for a host with backups. It is a file of its own because PostgreSQL keeps all
 * WAL that the archive does not accept, until the disk is full.
 */
export const archiveConf = () => `\
# Create the stanza first: pgbackrest --stanza=${STANZA} stanza-create. A change of archive_mode needs a restart.
archive_mode = on
archive_command = 'pgbackrest --stanza=${STANZA} archive-push %p'
# A lost disk takes with it at most what was written in the last minute.
archive_timeout = 60s
`;

const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`;

/**
 * Part of `postgresql.conf`, for a host that keeps its past. PostgreSQL reads it after that of the backups, whose archive gets
 * each file first.
 * @param program the agent's, as a shell runs it
 */
export function pastConf(
  { pastDir }: Pick<ServerLayout, 'pastDir'>,
  { program = 'branchgate-agent', hasBackups = false } = {},
): string {
  const folder = quoted(pastDir.replaceAll('%', '%%'));
  // The program knows what to do with a full volume, and with a file that is there.
  const store = `sh -ec ${quoted(STORE_WAL)} ${ARCHIVE_WAL} ${folder} %f %p 2>/dev/null || ${program} ${ARCHIVE_WAL} ${folder} %p`;
  const command = hasBackups ? `pgbackrest --stanza=${STANZA} archive-push %p && { ${store}; }` : store;
  return `\
# Recoveries to any second replay the WAL that is archived here. A change of archive_mode needs a restart.
archive_mode = on
archive_command = '${command.replaceAll("'", "''")}'
archive_timeout = 60s
`;
}

/** `/etc/pgbackrest/pgbackrest.conf`. */
export const pgBackRestConf = ({ dataDir, postgres }: ServerLayout) => `\
[global]
# Put the repository on another machine or in an object store (repo1-host, repo1-type), not on the disk of the data.
repo1-path=/var/lib/pgbackrest
repo1-retention-full=2
repo1-bundle=y
# Only the changed blocks of a file are stored again.
repo1-block=y
compress-type=zst
start-fast=y
log-level-file=off

[${STANZA}]
pg1-path=${dataDir}
pg1-port=${postgres.port}
pg1-socket-path=${postgres.socketDir}
pg1-user=${PLATFORM_ROLE}
`;

/** A full backup on Sundays, and the differences from it on other days. */
export const backupUnit = ({ agentUser }: ServerLayout) => `\
# /etc/systemd/system/branchgate-backup.service
[Unit]
Description=backup of this host's databases
After=postgresql.service

[Service]
Type=oneshot
User=${agentUser}
Nice=10
IOSchedulingClass=idle
ExecStart=/bin/sh -c 'test "$(date +%%u)" = 7 && kind=full || kind=diff; exec pgbackrest --stanza=${STANZA} --type=$kind backup'
`;

export const backupTimer = () => `\
# /etc/systemd/system/branchgate-backup.timer
[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
`;
