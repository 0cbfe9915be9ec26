import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import type { CloneMethod } from '../cloning/create-clone.ts';
import type { DrillState } from '../past/drills.ts';
import { BASE_COPY_LABEL } from '../past/make-base-copy.ts';
import type { PastState } from '../past/past.ts';
import { atLeast } from '../pooler/admin-console.ts';
import { collationRemedy } from '../postgres/collations.ts';
import { PLATFORM_ROLE, type Queryable } from '../postgres/connect.ts';
import type { RefusedExtension } from '../postgres/extensions.ts';
import { OLD_IDS, type OldestIds } from '../postgres/oldest-ids.ts';
import { type AgentSettings, extensionsFolder, rulesFolder } from '../process/settings.ts';
import { ARCHIVE_WAL } from '../servers/archive-command.ts';
import { ARCHIVED_WITHIN_MINUTES, BACKUP_WITHIN_HOURS } from '../servers/backup-configuration.ts';
import { daysUntil, ENDS_SOON_DAYS } from '../servers/certificate.ts';
import {
  AGENT_LOGINS,
  CLIENT_CHECK_SECONDS,
  LOCKS_PER_CONNECTION,
  LOG_FILE_MB,
  LOG_FILENAME,
  LOGIN_RETRY_SECONDS,
  LOGIN_WITHIN_SECONDS,
  NOTIFY_QUEUE_PAGES,
  RESERVED_FOR_AGENT,
  RULE_FILES,
  SERVER_IDLE_SECONDS,
  SLOT_WAL_GB,
  SPARE_POOLER_CLIENTS,
} from '../servers/configuration.ts';
import type { PortState } from '../sql/examine-port.ts';

const millions = (ids: number) => Math.round(ids / 1e6).toLocaleString('en');

/** How far this host is backed up, as PostgreSQL knows it, whatever program makes the backups. */
export interface BackupState {
  /** True if finished segments of the WAL go to an archive of backups, beside that of recoveries. */
  archives: boolean;
  /** True if finished segments go to any archive. */
  waits: boolean;
  lastArchivedAt: Date | null;
  /** When the oldest segment was finished that waits for the archive; null if none does. */
  waitingSince: Date | null;
  /** The end of the last backup of the data, which PostgreSQL notes in a file next to the WAL. */
  lastBackupAt: Date | null;
}

export async function readBackupState(db: Queryable): Promise<BackupState> {
  const { rows } = await db.query<{
    archives: boolean;
    waits: boolean;
    last_archived: Date | null;
    waiting: Date | null;
    last_backup: Date | null;
  }>(
    `SELECT current_setting('archive_mode') <> 'off' AS waits,
            current_setting('archive_mode') <> 'off' AND current_setting('archive_command') !~ $1 AS archives,
            (SELECT last_archived_time FROM pg_stat_archiver) AS last_archived,
            (SELECT min(modification) FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready') AS waiting,
            (SELECT max(modification) FROM pg_ls_waldir() WHERE name LIKE '%.backup'
               AND position($2 IN pg_read_file('pg_wal/' || name, true)) = 0) AS last_backup`,
    [`^[^&]*${ARCHIVE_WAL}[^&]*$`, `LABEL: ${BASE_COPY_LABEL}`],
  );
  const [row] = rows;
  return {
    archives: row?.archives ?? false,
    waits: row?.waits ?? false,
    lastArchivedAt: row?.last_archived ?? null,
    waitingSince: row?.waiting ?? null,
    lastBackupAt: row?.last_backup ?? null,
  };
}

/** Finished files of the WAL that wait for the archive; null without one. */
export async function readUnarchived(db: Queryable): Promise<number | null> {
  const { rows } = await db.query<{ files: number | null }>(
    `SELECT CASE WHEN current_setting('archive_mode') <> 'off' THEN
       (SELECT count(*)::int FROM pg_ls_archive_statusdir() WHERE name LIKE '%.ready') END AS files`,
  );
  return rows[0]?.files ?? null;
}

/** Whether it is known, and no longer ago than this. */
const isWithin = (at: Date | null, milliseconds: number, now = Date.now()): boolean =>
  at !== null && now - at.getTime() <= milliseconds;

const CGROUPS = '/sys/fs/cgroup';

/** What bounds the memory of PostgreSQL, next to its own settings. */
export interface MachineLimits {
  /** Linux's `vm.overcommit_memory`; null when it cannot be read. */
  overcommit: number | null;
  /**
   * Limit of PostgreSQL's control group (cgroup v2) in bytes; Infinity without a limit, null when it is
   * unknown.
   */
  memoryMax: number | null;
}

/** @param root of the file system, which tests replace */
export async function readMachineLimits(dataDir: string, root = '/'): Promise<MachineLimits> {
  const read = (path: string) => readFile(join(root, path), 'utf8').catch(() => null);
  const overcommit = await read('proc/sys/vm/overcommit_memory');
  const pid = Number(
    (await readFile(join(dataDir, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n')[0],
  );
  const [, group] = /^0::(\/.*)$/m.exec((await read(`proc/${pid}/cgroup`)) ?? '') ?? [];
  return {
    overcommit: overcommit === null ? null : Number(overcommit),
    memoryMax: group === undefined ? null : await lowestLimit(group, read),
  };
}

/** The lowest limit among a group and those that contain it. The outermost group has no such file. */
async function lowestLimit(
  group: string,
  read: (path: string) => Promise<string | null>,
): Promise<number | null> {
  let lowest: number | null = null;
  for (let path = group; ; path = dirname(path)) {
    const text = (await read(join(CGROUPS, path, 'memory.max')))?.trim();
    if (text) lowest = Math.min(lowest ?? Infinity, text === 'max' ? Infinity : Number(text));
    if (path === '/') return lowest;
  }
}

/** A fault of the set-up. With a `problem`, branches do not work or are not safe. */
export interface Finding {
  severity: 'problem' | 'advice';
  /** What is wrong, and what to do about it. */
  sentence: string;
}

/** What the checks look at. */
export interface Facts {
  settings: AgentSettings;
  cloneMethod: CloneMethod;
  postgres: Record<string, string>;
  pooler: Record<string, string>;
  poolerVersion: string;
  hbaText: string;
  identText: string;
  machine: MachineLimits;
  backup: BackupState;
  past: PastState;
  drills: DrillState;
  sameDataDirectory: boolean;
  readsLogs: boolean;
  canGuard: boolean;
  /** The major version of `pg_dump` in POSTGRES_BIN; null without one that runs. */
  dumpVersion: number | null;
  /** Free bytes of the fullest volume. */
  freeBytes: number;
  /** Whether a volume has so few free inodes that clones are refused. */
  isShortOfInodes: boolean;
  /** Whether the members of PostgreSQL's networks are those that the rules admit. */
  isAdmissionCurrent: boolean;
  /** Databases with a branch's name that every login may enter. */
  openToPublic: string[];
  /** The superuser that `initdb` made: `session_user` of autovacuum, which runs code of tenants. */
  bootstrapRole: string;
  /** Databases with another version of their collation than the libraries of this machine. */
  outdatedCollations: string[];
  oldestIds: OldestIds;
  /** Names in EXTENSIONS that owners cannot create. */
  refusedExtensions: RefusedExtension[];
  /** Names in PROJECT_EXTENSIONS that projects cannot have. */
  refusedProjectExtensions: RefusedExtension[];
  /** The program that answers at the port of SQL over WebSocket. */
  sqlPort: PortState;
  /** When the first certificate of both servers ends; null if none can be read. */
  certificateEndsAt: Date | null;
  /**
   * Whether the packet filter has the agent's table; null when it is unknown, and true when none is wanted.
   */
  filters: boolean | null;
}

interface Check {
  severity: (facts: Facts) => Finding['severity'];
  fine: (facts: Facts) => boolean;
  sentence: string | ((facts: Facts) => string);
}

const problem = (fine: Check['fine'], sentence: Check['sentence']): Check => ({
  severity: () => 'problem',
  fine,
  sentence,
});
const advice = (fine: Check['fine'], sentence: Check['sentence']): Check => ({
  severity: () => 'advice',
  fine,
  sentence,
});
/**
 * A problem on a host that serves a network, and advice on one that only programs of the same machine reach.
 */
const problemOnNetwork = (fine: Check['fine'], sentence: string): Check => ({
  severity: ({ postgres, pooler }) =>
    isLoopback(postgres.listen_addresses) && isLoopback(pooler.listen_addr) ? 'advice' : 'problem',
  fine,
  sentence,
});

const isLoopback = (addresses = '') =>
  addresses.split(',').every((address) => ['', '127.0.0.1', '::1', 'localhost'].includes(address.trim()));

/** Whether a setting is switched on and at most `limit`; most settings mean "no limit" with 0 or -1. */
const within = (setting: string | undefined, limit: number) =>
  Number(setting) > 0 && Number(setting) <= limit;

const ruleFile = ({ settings }: Facts, file: keyof typeof RULE_FILES) =>
  join(rulesFolder(settings), RULE_FILES[file]);

const listRefused = (extensions: readonly RefusedExtension[]) =>
  extensions.map(({ name, reason }) => `${name}: ${reason}`).join('; ');

/** `branchgate-agent configuration` prints a set-up that passes all of these. */
export const CHECKS: readonly Check[] = [
  problem(
    ({ postgres }) => Number(postgres.server_version_num) >= 180_000,
    'PostgreSQL is older than 18, which can neither share blocks nor log authenticated users: upgrade it.',
  ),
  problem(
    ({ sameDataDirectory }) => sameDataDirectory,
    "PGDATA_DIR is not this PostgreSQL's data directory: correct it.",
  ),
  problem(
    ({ postgres }) => postgres.ssl === 'on',
    'PostgreSQL has TLS off, so no client can connect: set ssl = on.',
  ),
  problem(
    ({ certificateEndsAt: end }) => end === null || daysUntil(end) >= 0,
    'The certificate of the servers has ended, so clients that verify it cannot connect: replace it with `branchgate-agent join --only certificate`.',
  ),
  advice(
    ({ certificateEndsAt: end }) => end === null || daysUntil(end) < 0 || daysUntil(end) >= ENDS_SOON_DAYS,
    ({ certificateEndsAt: end }) =>
      `The certificate of the servers ends in ${end ? daysUntil(end) : 0} days: replace it with \`branchgate-agent join --only certificate\`.`,
  ),
  problem(
    (facts) => facts.hbaText.includes(ruleFile(facts, 'postgresHba')),
    "pg_hba.conf does not include the agent's rules: add the line that `configuration` prints.",
  ),
  problem(
    ({ isAdmissionCurrent }) => isAdmissionCurrent,
    'The logins are not members of the networks that their rules admit: restart the agent, and read its log if this stays.',
  ),
  problem(
    ({ openToPublic }) => openToPublic.length === 0,
    'A database whose name begins with db_ is open to every login: revoke CONNECT on it from PUBLIC, or restart the agent.',
  ),
  advice(
    ({ bootstrapRole }) => bootstrapRole !== PLATFORM_ROLE,
    `Functions of tenants run in autovacuum with the agent's role as session_user: make the cluster with another superuser (\`initdb --username=postgres\`), and ${PLATFORM_ROLE} with CREATE ROLE.`,
  ),
  problem(
    ({ outdatedCollations }) => outdatedCollations.length === 0,
    ({ outdatedCollations: [first = '', ...others] }) =>
      `The libraries of this machine sort text in another way than when ${[first, ...others].length} databases were made, so their indexes can be wrong and they cannot be cloned. In each, for instance ${first}, run \`${collationRemedy(first)}\` (docs/operating.md#collation-versions).`,
  ),
  problem(
    ({ oldestIds }) => Math.max(oldestIds.transaction, oldestIds.multixact) < OLD_IDS,
    ({ oldestIds }) =>
      `Rows of ${millions(oldestIds.transaction)} million transaction ids ago (multixacts: ${millions(oldestIds.multixact)} million) are not frozen, and at 2,144 million PostgreSQL refuses all writes of this host: remove what keeps them, and freeze them (docs/operating.md#transaction-ids).`,
  ),
  problem(
    ({ poolerVersion }) => atLeast(poolerVersion, [1, 18, 0]),
    'PgBouncer is older than 1.18, with which the agent is not tested: upgrade it.',
  ),
  problem(
    ({ pooler }) => pooler.pool_mode === 'transaction',
    'PgBouncer does not pool by transaction, so a busy source can never be cloned: set pool_mode = transaction.',
  ),
  problem(
    ({ pooler }) => /^(require|verify-)/.test(pooler.client_tls_sslmode ?? ''),
    'PgBouncer accepts clients without TLS: set client_tls_sslmode = require.',
  ),
  problem(
    (facts) =>
      facts.pooler.auth_type === 'hba' &&
      facts.pooler.auth_hba_file === ruleFile(facts, 'poolerHba') &&
      facts.pooler.auth_file === ruleFile(facts, 'poolerUsers'),
    "PgBouncer does not use the agent's rules: set auth_type, auth_hba_file and auth_file as `configuration` prints them.",
  ),
  problem(
    ({ postgres }) =>
      postgres.logging_collector === 'on' &&
      /\bjsonlog\b/.test(postgres.log_destination ?? '') &&
      /\b(authentication|all|on)\b/.test(postgres.log_connections ?? '') &&
      postgres.log_hostname === 'off',
    'PostgreSQL does not log connections with their addresses, so attempts are not limited: set logging_collector, log_destination and log_connections as `configuration` prints them, and log_hostname = off.',
  ),
  problem(
    ({ settings, pooler }) => pooler.logfile === settings.POOLER_LOG && pooler.log_connections === '1',
    'PgBouncer does not log connections to POOLER_LOG, so attempts are not limited: set logfile and log_connections as `configuration` prints them.',
  ),
  problem(
    ({ readsLogs }) => readsLogs,
    "The agent cannot read both servers' logs, so attempts are not limited: grant its user read access.",
  ),
  problem(
    ({ identText, hbaText }) => identText.includes(AGENT_LOGINS) && hbaText.includes(AGENT_LOGINS),
    'pg_hba.conf or pg_ident.conf does not admit the agent to all logins of branches, so default privileges are not repaired, queries of viewers run as the read-only login of applications, or projects cannot move from this host: replace both files by what `configuration` prints.',
  ),
  problem(
    ({ postgres }) => Number(postgres.max_locks_per_transaction) >= LOCKS_PER_CONNECTION,
    `One login can fill the lock table, after which nobody logs in: set max_locks_per_transaction = ${LOCKS_PER_CONNECTION}.`,
  ),
  problem(
    ({ postgres }) => within(postgres.max_notify_queue_pages, NOTIFY_QUEUE_PAGES),
    `One login can fill the disk with notifications: set max_notify_queue_pages = ${NOTIFY_QUEUE_PAGES}.`,
  ),
  problem(
    ({ postgres }) => within(postgres.authentication_timeout, LOGIN_WITHIN_SECONDS),
    `Clients that never log in occupy connections: set authentication_timeout = ${LOGIN_WITHIN_SECONDS}s.`,
  ),
  problem(
    ({ postgres }) => within(postgres.client_connection_check_interval, CLIENT_CHECK_SECONDS * 1000),
    `Statements run on after their client has gone: set client_connection_check_interval = ${CLIENT_CHECK_SECONDS}s.`,
  ),
  problem(
    ({ postgres }) => Number(postgres.superuser_reserved_connections) >= RESERVED_FOR_AGENT,
    `Tenants can take every connection from the agent: set superuser_reserved_connections = ${RESERVED_FOR_AGENT}.`,
  ),
  problem(
    ({ postgres }) => postgres.max_prepared_transactions === '0',
    'A prepared transaction of a tenant keeps all databases from cleaning up, and blocks clones and drops: set max_prepared_transactions = 0.',
  ),
  problem(
    ({ postgres }) => postgres.autovacuum === 'on' && postgres.track_activities === 'on',
    'Autovacuum is off, or the watchdogs do not see what it does: set autovacuum = on and track_activities = on.',
  ),
  problem(
    ({ settings, postgres }) =>
      settings.BRANCH_CONNECTIONS * 2 <=
      Number(postgres.max_connections) - Number(postgres.superuser_reserved_connections),
    'One branch can take more than half of the connections: lower BRANCH_CONNECTIONS or raise max_connections.',
  ),
  problem(
    ({ settings, postgres }) =>
      settings.PROJECT_CONNECTIONS * 2 <=
      Number(postgres.max_connections) - Number(postgres.superuser_reserved_connections),
    'One project can take more than half of the connections: lower PROJECT_CONNECTIONS or raise max_connections.',
  ),
  problem(
    ({ settings, postgres }) =>
      settings.TENANT_CONNECTIONS * 2 <
      Number(postgres.max_connections) - Number(postgres.superuser_reserved_connections),
    'One tenant can take half of the connections: lower TENANT_CONNECTIONS or raise max_connections.',
  ),
  problem(
    ({ settings }) => settings.GUARDS === 'on',
    'The watchdogs are off, so one tenant can stop all others: unset GUARDS.',
  ),
  problem(
    ({ canGuard }) => canGuard,
    "The agent may not signal PostgreSQL's processes, so it cannot end sessions of tenants: run it as PostgreSQL's user.",
  ),
  problem(
    ({ dumpVersion, postgres }) =>
      dumpVersion !== null && dumpVersion >= Math.floor(Number(postgres.server_version_num) / 10_000),
    ({ settings, dumpVersion }) =>
      `Databases can be neither imported nor followed nor moved, because ${settings.POSTGRES_BIN} has ${dumpVersion === null ? 'no pg_dump' : `pg_dump ${dumpVersion}, which is older than PostgreSQL`}: install postgresql-client-18, or set POSTGRES_BIN to the folder of PostgreSQL's programs.`,
  ),
  problem(
    ({ settings, freeBytes }) => freeBytes >= settings.MIN_FREE_DISK_MB * 2 ** 20,
    'A volume has less free space than MIN_FREE_DISK_MB, so branches that write much are blocked: free some.',
  ),
  problem(
    ({ isShortOfInodes }) => !isShortOfInodes,
    'A volume has few free inodes (`df -i`), so clones are refused and branches that make many tables are blocked: drop branches, or move the data to XFS, which makes inodes as needed.',
  ),
  problem(
    ({ postgres }) =>
      within(postgres.log_rotation_size, LOG_FILE_MB * 1024) &&
      postgres.log_filename === LOG_FILENAME &&
      postgres.log_timezone === 'UTC',
    "The agent cannot bound PostgreSQL's logs: set log_rotation_size, log_filename and log_timezone as `configuration` prints them.",
  ),
  problem(
    ({ settings, pooler }) =>
      Number(pooler.max_client_conn) >= settings.POOLER_MAX_CLIENTS + SPARE_POOLER_CLIENTS,
    'Sockets that never log in can take the places of POOLER_MAX_CLIENTS: set max_client_conn as `configuration` prints it.',
  ),
  problemOnNetwork(
    ({ poolerVersion }) => atLeast(poolerVersion, [1, 25, 2]),
    'PgBouncer is older than 1.25.2 and has known vulnerabilities: upgrade it before exposing it to a network.',
  ),
  problemOnNetwork(
    ({ machine }) => machine.memoryMax !== Infinity,
    'Sorts of one tenant can take all memory of the machine: install the drop-in that `configuration postgresql.service.conf` prints.',
  ),
  problem(
    ({ filters }) => filters !== false,
    'FIREWALL is nftables, but the packet filter has no table of this agent: start it with the drop-in that `configuration branchgate-agent.service.conf` prints.',
  ),
  advice(
    ({ filters }) => filters !== null,
    'It is unknown whether the packet filter has the table of this agent: run `nft list tables` as root.',
  ),
  advice(
    ({ settings }) => settings.FIREWALL !== 'off',
    'Silent sockets from addresses that no rule admits can occupy both ports: set FIREWALL = nftables, with the drop-in that `configuration branchgate-agent.service.conf` prints.',
  ),
  advice(
    ({ settings }) => settings.POOLER_STANDBY_PORT > 0,
    'PgBouncer keeps memory for every login it has seen, and a restart disconnects all pooled clients: install its standby, and set POOLER_STANDBY_PORT.',
  ),
  advice(
    ({ settings, pooler }) => settings.POOLER_STANDBY_PORT === 0 || Number(pooler.peer_id) > 0,
    'Requests to cancel a statement are lost while PgBouncer is restarted: use PgBouncer 1.19 or later, with peer_id and [peers] as `configuration` prints them.',
  ),
  advice(
    ({ refusedExtensions }) => refusedExtensions.length === 0,
    ({ refusedExtensions }) => `Owners cannot create some of EXTENSIONS: ${listRefused(refusedExtensions)}.`,
  ),
  advice(
    ({ refusedProjectExtensions }) => refusedProjectExtensions.length === 0,
    ({ refusedProjectExtensions }) =>
      `No project can be created with some of PROJECT_EXTENSIONS: ${listRefused(refusedProjectExtensions)}.`,
  ),
  problem(
    ({ settings, postgres }) =>
      settings.EXTENSIONS.length === 0 ||
      (postgres.extension_control_path ?? '').split(':')[0] === extensionsFolder(settings),
    'PostgreSQL does not look for EXTENSIONS in the folder of the agent: set extension_control_path as `configuration` prints it.',
  ),
  advice(
    ({ backup }) => backup.archives,
    'A lost disk takes all databases with it: set up backups, with the files pgbackrest.conf and postgresql.archive.conf that `configuration` prints.',
  ),
  problem(
    ({ backup }) =>
      !backup.waits ||
      backup.waitingSince === null ||
      isWithin(backup.waitingSince, ARCHIVED_WITHIN_MINUTES * 60_000),
    `WAL has waited for the archive for more than ${ARCHIVED_WITHIN_MINUTES} minutes and fills the disk: read archive_command's errors in PostgreSQL's log.`,
  ),
  problem(
    ({ backup }) => !backup.archives || isWithin(backup.lastBackupAt, BACKUP_WITHIN_HOURS * 3_600_000),
    `There is no backup of the last ${BACKUP_WITHIN_HOURS} hours, and without one the archived WAL is of no use: make one, and check its timer.`,
  ),
  problem(
    ({ past, postgres }) =>
      past.hours === 0 ||
      (postgres.archive_mode !== 'off' && (postgres.archive_command ?? '').includes(ARCHIVE_WAL)),
    'Nothing can be recovered to an earlier time, because PostgreSQL does not archive its WAL for that: run `branchgate-agent join` again, or set RECOVERY_WINDOW_HOURS=0.',
  ),
  problem(
    ({ past }) => past.hours === 0 || past.from !== null || !past.isBegun,
    'Nothing can be recovered to an earlier time, because there is no base copy with all WAL since then: read `past.not_kept` in the log of the agent.',
  ),
  advice(
    ({ past }) => past.hours === 0 || past.isBegun,
    'Nothing can be recovered to an earlier time yet: the agent makes the first base copy when it starts.',
  ),
  problem(
    ({ drills }) => drills.failing === 0,
    'A drill of a recovery has failed, so the recovery of a user can fail too: `past.drilled` and `past.drill_failed` in the log of the agent have the project and the reason. Check the disk of PAST_DIR. The next base copy begins a window that is whole.',
  ),
  problem(
    ({ drills }) => drills.overdue === 0,
    'No drill has proven the recoveries of a project for two weeks: `past.not_drilled` and `past.not_recorded` in the log of the agent say why.',
  ),
  advice(
    ({ past }) => past.hours === 0 || !past.isShortened,
    ({ settings }) =>
      `Base copies and archived WAL take ${settings.PAST_DISK_PERCENT} % of their disk, or it is nearly full, so the oldest were dropped and the window of recoveries is shorter than RECOVERY_WINDOW_HOURS: enlarge the disk, or lower it.`,
  ),
  advice(
    ({ sqlPort }) => sqlPort !== 'other',
    ({ settings }) =>
      `Another program answers at port ${settings.SQL_PORT}, so functions cannot open WebSockets: stop it, or set SQL_PORT to another port, or to 0.`,
  ),
  advice(
    ({ sqlPort }) => sqlPort !== 'none',
    ({ settings }) =>
      `Nothing answers at port ${settings.SQL_PORT}, so functions cannot open WebSockets: read the reason of sql.unserved in the agent's log. A low port takes CAP_NET_BIND_SERVICE, which the agent's unit has.`,
  ),
  advice(
    ({ machine }) => machine.memoryMax !== null,
    "It is unknown whether PostgreSQL's memory is limited (no cgroup v2): check the limits of its unit.",
  ),
  advice(
    ({ machine }) => machine.overcommit === 2,
    'Linux ends a process, and with it all sessions, when memory runs out: set vm.overcommit_memory = 2.',
  ),
  advice(
    ({ pooler }) => Number(pooler.server_login_retry) <= LOGIN_RETRY_SECONDS,
    `A clone can delay its source's clients: set PgBouncer's server_login_retry = ${LOGIN_RETRY_SECONDS}.`,
  ),
  advice(
    ({ pooler }) => Number(pooler.server_idle_timeout) <= SERVER_IDLE_SECONDS,
    `Unused branches can occupy every connection: set PgBouncer's server_idle_timeout = ${SERVER_IDLE_SECONDS}.`,
  ),
  advice(
    ({ postgres }) => postgres.summarize_wal === 'on',
    'Comparisons of branches cannot use summaries of the WAL: set summarize_wal = on.',
  ),
  advice(
    ({ postgres }) => postgres.wal_level === 'logical' && Number(postgres.max_slot_wal_keep_size) > 0,
    `Projects cannot move from this host: set wal_level = logical and max_slot_wal_keep_size = ${SLOT_WAL_GB}GB, and restart PostgreSQL.`,
  ),
  advice(
    ({ postgres }) => postgres.in_hot_standby === 'on' || postgres.max_logical_replication_workers !== '0',
    'Nothing can follow a database or move to this host, because it was a standby when PostgreSQL started: restart PostgreSQL once, which disconnects its clients.',
  ),
  advice(
    ({ cloneMethod }) => cloneMethod === 'reflink',
    'The file system of the data directory has no reflinks, so every clone copies all bytes: use XFS or Btrfs.',
  ),
];
