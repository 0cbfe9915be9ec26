/**
 * The configuration that the agent needs of the two servers, as text: the local stack writes it, the
 * control tool prints it for a real host. What changes with every branch is not here but in the rule files,
 * which these files include.
 */

/** The platform's superuser in PostgreSQL; its database of the same name holds the agent's tables. */
export const PLATFORM_ROLE = 'branchgate';

/** Direct sessions beside the pooled ones, and slots that no tenant can take from the agent. */
const DIRECT_CLIENTS = 180;
export const RESERVED_FOR_AGENT = 20;

/** Far shorter than a clone, long enough not to keep the pooler busy while PostgreSQL is away. */
export const LOGIN_RETRY_SECONDS = 0.01;

/** Longer than a client that comes often stays away. */
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
  /** `maxClients` (spec section 8) is of all branches together. */
  pooler: { port: number; socketDir: string; logFile: string; maxClients: number };
  /** Certificate and key (PEM) that both servers show to clients. */
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

# ${pooler.maxClients} pooled, ${DIRECT_CLIENTS} direct, ${RESERVED_FOR_AGENT} that no tenant can take from the agent.
max_connections = ${pooler.maxClients + DIRECT_CLIENTS + RESERVED_FOR_AGENT}
superuser_reserved_connections = ${RESERVED_FOR_AGENT}
# A prepared transaction would keep its database from being cloned or dropped, for ever.
max_prepared_transactions = 0

# A week, a file a day. The agent counts connection attempts here and in the pooler's log.
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
 * `pg_hba.conf`. Local sessions are known by their operating system user, so neither agent nor pooler keeps
 * a password; everything from the network is in the included file, and what is not there is refused.
 */
export const pgHbaConf = ({ rulesDir }: ServerLayout) => `\
local all ${PLATFORM_ROLE} peer map=${PLATFORM_ROLE}
local all ${ANY_LOGIN} peer map=${PLATFORM_ROLE}
include_if_exists "${rulesDir}/${RULE_FILES.postgresHba}"
`;

/** `pg_ident.conf`: which operating system user may be which role. */
export const pgIdentConf = ({ agentUser, poolerUser }: ServerLayout) => `\
${PLATFORM_ROLE} "${agentUser}" ${PLATFORM_ROLE}
${PLATFORM_ROLE} "${agentUser}" ${ANY_READ_WRITE_LOGIN}
${PLATFORM_ROLE} "${poolerUser}" ${ANY_LOGIN}
`;

/**
 * `pgbouncer.ini`. The console needs no entry: PgBouncer lets user `pgbouncer` in over its unix socket when
 * the caller's operating system user is its own, which is why agent and pooler share one.
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
# No client shows a certificate. Without this, every RELOAD reads the system's bundle of authorities: 17 ms in
# which all clients of the pooler stand still, 1 ms with it.
client_tls_ca_file = ${tls.certFile}

auth_type = hba
auth_hba_file = ${rulesDir}/${RULE_FILES.poolerHba}
auth_file = ${rulesDir}/${RULE_FILES.poolerUsers}

pool_mode = transaction
max_client_conn = ${pooler.maxClients}
ignore_startup_parameters = extra_float_digits
# PAUSE cuts off a login to PostgreSQL that is under way. It counts as failed, and nobody of that database is
# served until this many seconds later.
server_login_retry = ${LOGIN_RETRY_SECONDS}
client_login_timeout = 15
# A session that nobody uses takes one of max_connections. Those of all the branches that were in use within the default
# of ten minutes, a proof's included, would leave none to the next.
server_idle_timeout = ${SERVER_IDLE_SECONDS}

# It grows until something else renames it: each RELOAD, and the agent's are many, opens it anew.
logfile = ${pooler.logFile}
log_connections = 1
`;
