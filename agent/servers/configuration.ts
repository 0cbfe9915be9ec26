import { dirname, join } from 'node:path';
import { FOLLOWED_ON_HOST_MAX } from '../../shared/limits.ts';
import type { Instance } from '../pooler/restart-state.ts';
import { PLATFORM_ROLE } from '../postgres/connect.ts';

/**
 * The configuration files of the two servers as the agent needs them. The local stack writes them, and the
 * control tool prints them for a real host. Everything that changes with a branch is in the rule files that
 * they include.
 */

/** Direct sessions in addition to the pooled ones, and connections that are reserved for the agent. */
const DIRECT_CLIENTS = 180;
export const RESERVED_FOR_AGENT = 20;

/**
 * Entries of PostgreSQL's lock table per connection. One session that takes all of them stops every login, so
 * the table is large enough for the agent to end that session first.
 */
export const LOCKS_PER_CONNECTION = 1024;

/** Queue of NOTIFY, which one open listener can fill: 128 MB in pages of 8 kB. */
export const NOTIFY_QUEUE_PAGES = 16_384;

/** Longest time for a client to log in to PostgreSQL, which takes a connection meanwhile. */
export const LOGIN_WITHIN_SECONDS = 10;

/** How often a statement checks that its client is still there. */
export const CLIENT_CHECK_SECONDS = 10;

/** Days for which PostgreSQL keeps which blocks were written. Older branches are compared in another way. */
const WAL_SUMMARY_DAYS = 30;

/** Workers that copy tables which were added at sources. */
const TABLE_WORKERS = 4;
/** A subscription has one, and each table that it copies. */
const ORIGINS = 64;
/** What PostgreSQL's own default leaves for parallel queries and other workers. */
const OTHER_WORKERS = 8;

/** Size at which PostgreSQL begins another log file. */
export const LOG_FILE_MB = 64;

/** Names with the time, so that a rotation by size opens another file and names sort by time. */
export const LOG_FILENAME = 'postgresql-%Y%m%d-%H%M%S.log';

/** Clients of the pooler above the number that is sold. Sockets that never log in take these first. */
export const SPARE_POOLER_CLIENTS = 300;

/** Far shorter than a clone, and long enough for the pooler to stay idle while PostgreSQL is away. */
export const LOGIN_RETRY_SECONDS = 0.01;

/** Longer than the usual pause of an active client. */
export const SERVER_IDLE_SECONDS = 10;

/** File names inside the rules folder. */
export const RULE_FILES = {
  postgresHba: 'pg_hba.conf',
  poolerHba: 'pgbouncer_hba.conf',
  poolerDatabases: 'pgbouncer_databases.ini',
  poolerUsers: 'userlist.txt',
} as const;

export interface ServerLayout {
  /** Addresses both servers listen on, comma-separated; `*` for all. */
  listenAddresses: string;
  postgres: { port: number; socketDir: string };
  /**
   * `maxClients` is the number that is sold (specification 8, which names no scope): of all branches together. `standbyPort` is 0
   * without one.
   */
  pooler: { port: number; socketDir: string; logFile: string; maxClients: number; standbyPort: number };
  /** Port of SQL over WebSocket, which the agent serves; 0: off. */
  sqlPort: number;
  /** Certificate and key (PEM) that both servers present to clients. */
  tls: { certFile: string; keyFile: string };
  /** PostgreSQL's data. */
  dataDir: string;
  /** The agent's PAST_DIR. */
  pastDir: string;
  /** `rules` below the agent's STATE_DIR. */
  rulesDir: string;
  /** `extensions` below the agent's STATE_DIR. */
  extensionsDir: string;
  /** The file that exists while the standby is wanted. */
  standbyMark: string;
  /** Operating system users; PostgreSQL's own is the agent's. */
  agentUser: string;
  poolerUser: string;
}

/** WAL that a slot of a move keeps at most, of all tenants together. A move that needs more is undone. */
export const SLOT_WAL_GB = 10;

/** `max_connections` of PostgreSQL. */
export const postgresConnections = ({ maxClients }: Pick<ServerLayout['pooler'], 'maxClients'>) =>
  maxClients + DIRECT_CLIENTS + RESERVED_FOR_AGENT;

/** Both are in the agent's STATE_DIR. */
const standbyConfOf = (rulesDir: string) => join(dirname(rulesDir), 'standby.conf');

const quoted = (text: string) => `'${text.replaceAll("'", "''")}'`;

/** `postgresql.conf`, or a file that it includes. */
export const postgresqlConf = ({
  listenAddresses,
  postgres,
  pooler,
  tls,
  extensionsDir,
  rulesDir,
}: ServerLayout) => `\
listen_addresses = ${quoted(listenAddresses)}
port = ${postgres.port}
unix_socket_directories = ${quoted(postgres.socketDir)}

ssl = on
ssl_cert_file = ${quoted(tls.certFile)}
ssl_key_file = ${quoted(tls.keyFile)}
password_encryption = scram-sha-256

# ${pooler.maxClients} pooled, ${DIRECT_CLIENTS} direct, ${RESERVED_FOR_AGENT} reserved for the agent.
max_connections = ${postgresConnections(pooler)}
superuser_reserved_connections = ${RESERVED_FOR_AGENT}
max_locks_per_transaction = ${LOCKS_PER_CONNECTION}
authentication_timeout = ${LOGIN_WITHIN_SECONDS}s
# Without it, the statement of a client that has disconnected runs to its end.
client_connection_check_interval = ${CLIENT_CHECK_SECONDS}s
# The queue of NOTIFY is at most ${(NOTIFY_QUEUE_PAGES * 8) / 1024} MB.
max_notify_queue_pages = ${NOTIFY_QUEUE_PAGES}
# Which blocks were written is kept for some days, so that a comparison of two branches reads only these.
summarize_wal = on
wal_summary_keep_time = ${WAL_SUMMARY_DAYS}d
# CREATE DATABASE shares blocks where the file system can, also when recovery and standbys repeat it.
file_copy_method = clone
# A forgotten prepared transaction would prevent clones and the drop of its database.
max_prepared_transactions = 0
# A project moves to another host by its changes, and a standby receives all of them. One that reads none must not fill the disk.
wal_level = logical
max_slot_wal_keep_size = ${SLOT_WAL_GB}GB
# ${FOLLOWED_ON_HOST_MAX} branches can follow a database elsewhere, and ${TABLE_WORKERS} tables that were added there are copied at a time. PostgreSQL
# does not start with fewer origins than are in use, so a later release only raises that number.
max_logical_replication_workers = ${FOLLOWED_ON_HOST_MAX + TABLE_WORKERS}
max_sync_workers_per_subscription = 2
max_worker_processes = ${FOLLOWED_ON_HOST_MAX + TABLE_WORKERS + OTHER_WORKERS}
max_active_replication_origins = ${ORIGINS}
# What a standby has in addition.
include_if_exists ${quoted(standbyConfOf(rulesDir))}
# The extensions that the agent marks as trusted, before those of the system.
extension_control_path = ${quoted(`${extensionsDir}:$system`)}

# The agent counts connection attempts here and in the pooler's log. It deletes the oldest files, and follows the
# files in the order of their names, so the names contain the time in UTC.
logging_collector = on
log_destination = 'jsonlog'
log_timezone = 'UTC'
log_filename = ${quoted(LOG_FILENAME)}
log_rotation_age = 1d
log_rotation_size = ${LOG_FILE_MB}MB
log_truncate_on_rotation = off
log_connections = 'authentication,authorization'
`;

/** The logins that clients have. */
export const CLIENT_LOGINS = '/^u_[0-9a-f]{32}_(owner|rw|ro)$';
/**
 * The agent reads rows and runs statements of clients as a branch's logins, and repairs default privileges as
 * the owner. As the login of a move it removes what that has left.
 */
export const AGENT_LOGINS = '/^(u_[0-9a-f]{32}_(owner|rw|ro|query)|mv_[0-9a-f]{32})$';

/**
 * `pg_hba.conf`. Local sessions authenticate as their operating system user, so neither agent nor pooler stores a
 * password. Network connections need a rule in the included file.
 */
export const pgHbaConf = ({ rulesDir }: ServerLayout) => `\
local all ${PLATFORM_ROLE} peer map=${PLATFORM_ROLE}
local all ${AGENT_LOGINS} peer map=${PLATFORM_ROLE}
include_if_exists "${rulesDir}/${RULE_FILES.postgresHba}"
`;

/** `pg_ident.conf`: maps operating system users to roles. */
export const pgIdentConf = ({ agentUser, poolerUser }: ServerLayout) => `\
${PLATFORM_ROLE} "${agentUser}" ${PLATFORM_ROLE}
${PLATFORM_ROLE} "${agentUser}" ${AGENT_LOGINS}
${PLATFORM_ROLE} "${poolerUser}" ${CLIENT_LOGINS}
`;

/** What common clients send besides the parameters that PgBouncer keeps for each client. */
const IGNORED_STARTUP_PARAMETERS = [
  'extra_float_digits',
  'options',
  'statement_timeout',
  'lock_timeout',
  'transaction_timeout',
  'idle_in_transaction_session_timeout',
  'idle_session_timeout',
  'jit',
];

/** Where a PgBouncer sends a request to cancel a statement that the other one runs. */
const peersOf = ({ socketDir, port, standbyPort }: ServerLayout['pooler']) => `
[peers]
1 = host=${socketDir} port=${port}
2 = host=${socketDir} port=${standbyPort}
`;

/**
 * `pgbouncer.ini`. The console needs no entry: PgBouncer admits user `pgbouncer` over its unix socket when the
 * client's operating system user is its own. Agent and pooler therefore run as the same user.
 */
export const pgbouncerIni = (layout: ServerLayout) => poolerIni(layout, 'main');

/** `pgbouncer-standby.ini`, of the PgBouncer that gets the new clients while the other one is restarted. */
export const standbyIni = (layout: ServerLayout) => poolerIni(layout, 'standby');

const poolerIni = ({ listenAddresses, pooler, tls, rulesDir }: ServerLayout, instance: Instance) => `\
[databases]
%include ${rulesDir}/${RULE_FILES.poolerDatabases}
${pooler.standbyPort > 0 ? peersOf(pooler) : ''}
[pgbouncer]
${pooler.standbyPort > 0 ? `peer_id = ${instance === 'main' ? 1 : 2}\n` : ''}\
listen_addr = ${listenAddresses}
listen_port = ${instance === 'main' ? pooler.port : pooler.standbyPort}
unix_socket_dir = ${pooler.socketDir}

client_tls_sslmode = require
client_tls_cert_file = ${tls.certFile}
client_tls_key_file = ${tls.keyFile}
# Clients present no certificate. Without this line every RELOAD reads the system's CA bundle, which stops all clients
# of the pooler for 17 ms instead of 1 ms.
client_tls_ca_file = ${tls.certFile}

auth_type = hba
auth_hba_file = ${rulesDir}/${RULE_FILES.poolerHba}
auth_file = ${rulesDir}/${RULE_FILES.poolerUsers}

pool_mode = transaction
# ${pooler.maxClients} clients, and ${SPARE_POOLER_CLIENTS} sockets that have not logged in.
max_client_conn = ${pooler.maxClients + SPARE_POOLER_CLIENTS}
# Common clients send them at every login, and a session of PostgreSQL is shared, so they cannot be applied to it
# (docs/decisions/pooler.md). Without this line PgBouncer refuses the login.
ignore_startup_parameters = ${IGNORED_STARTUP_PARAMETERS.join(', ')}
# PAUSE cuts off a login to PostgreSQL that is under way. It counts as failed, and clients of that database are not
# served until this many seconds later.
server_login_retry = ${LOGIN_RETRY_SECONDS}
client_login_timeout = 15
# An idle session takes one of max_connections. With the default of ten minutes, the branches that were used within
# that time, a proof included, could take all of them.
server_idle_timeout = ${SERVER_IDLE_SECONDS}

# It grows until log rotation renames it. Each RELOAD reopens it, and the agent sends many.
logfile = ${pooler.logFile}
log_connections = 1
`;
