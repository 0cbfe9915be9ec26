/**
 * The configuration files of the two servers as the agent needs them. The local stack writes them, and the control
 * tool prints them for a real host. Everything that changes with a branch is in the rule files that they include.
 */

/** The platform's superuser in PostgreSQL, and the database that contains the agent's tables. */
export const PLATFORM_ROLE = 'branchgate';

/** Direct sessions in addition to the pooled ones, and connections that are reserved for the agent. */
const DIRECT_CLIENTS = 180;
export const RESERVED_FOR_AGENT = 20;

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
  /** `maxClients` (specification 8) is for all branches together. */
  pooler: { port: number; socketDir: string; logFile: string; maxClients: number };
  /** Certificate and key (PEM) that both servers present to clients. */
  tls: { certFile: string; keyFile: string };
  /** `rules` below the agent's STATE_DIR. */
  rulesDir: string;
  /** Operating system users; PostgreSQL's own is the agent's. */
  agentUser: string;
  poolerUser: string;
}

const quoted = (text: string) => `'${text.replaceAll("'", "''")}'`;

/** `postgresql.conf`, or a file that it includes. */
export const postgresqlConf = ({ listenAddresses, postgres, pooler, tls }: ServerLayout) => `\
listen_addresses = ${quoted(listenAddresses)}
port = ${postgres.port}
unix_socket_directories = ${quoted(postgres.socketDir)}

ssl = on
ssl_cert_file = ${quoted(tls.certFile)}
ssl_key_file = ${quoted(tls.keyFile)}
password_encryption = scram-sha-256

# ${pooler.maxClients} pooled, ${DIRECT_CLIENTS} direct, ${RESERVED_FOR_AGENT} reserved for the agent.
max_connections = ${pooler.maxClients + DIRECT_CLIENTS + RESERVED_FOR_AGENT}
superuser_reserved_connections = ${RESERVED_FOR_AGENT}
# A forgotten prepared transaction would prevent clones and the drop of its database.
max_prepared_transactions = 0

# One file per day for a week. The agent counts connection attempts here and in the pooler's log.
logging_collector = on
log_destination = 'jsonlog'
log_filename = 'postgresql-%a.log'
log_rotation_age = 1d
log_rotation_size = 0
log_truncate_on_rotation = on
log_connections = 'authentication,authorization'
`;

const ANY_LOGIN = '/^u_[0-9a-f]{32}_(owner|rw|ro)$';
const ANY_READ_WRITE_LOGIN = '/^u_[0-9a-f]{32}_rw$';

/**
 * `pg_hba.conf`. Local sessions authenticate as their operating system user, so neither agent nor pooler stores a
 * password. Network connections need a rule in the included file.
 */
export const pgHbaConf = ({ rulesDir }: ServerLayout) => `\
local all ${PLATFORM_ROLE} peer map=${PLATFORM_ROLE}
local all ${ANY_LOGIN} peer map=${PLATFORM_ROLE}
include_if_exists "${rulesDir}/${RULE_FILES.postgresHba}"
`;

/** `pg_ident.conf`: maps operating system users to roles. */
export const pgIdentConf = ({ agentUser, poolerUser }: ServerLayout) => `\
${PLATFORM_ROLE} "${agentUser}" ${PLATFORM_ROLE}
${PLATFORM_ROLE} "${agentUser}" ${ANY_READ_WRITE_LOGIN}
${PLATFORM_ROLE} "${poolerUser}" ${ANY_LOGIN}
`;

/**
 * `pgbouncer.ini`. The console needs no entry: PgBouncer admits user `pgbouncer` over its unix socket when the
 * client's operating system user is its own. Agent and pooler therefore run as the same user.
 */
export const pgbouncerIni = ({ listenAddresses, pooler, tls, rulesDir }: ServerLayout) => `\
[databases]
%include ${rulesDir}/${RULE_FILES.poolerDatabases}

[pgbouncer]
listen_addr = ${listenAddresses}
listen_port = ${pooler.port}
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
max_client_conn = ${pooler.maxClients}
ignore_startup_parameters = extra_float_digits
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
