import { dirname, join } from 'node:path';
import { postgresConnections, type ServerLayout, SPARE_POOLER_CLIENTS } from './configuration.ts';

/** Size at which a log of PgBouncer is renamed, and how many of them stay. */
const POOLER_LOG_MB = 64;
const POOLER_LOGS_KEPT = 8;

/** Files that PgBouncer opens next to its sockets. */
const OWN_FILES = 100;

/**
 * A former primary must not open a port when it comes back. A host without a standby has no such file, and does not wait.
 */
const gateOf = ({ rulesDir }: ServerLayout) => `\
# A host with a standby asks the gateway whether it is still the primary, and waits if it is not.
EnvironmentFile=-/etc/branchgate/agent.env
ExecStartPre=/bin/sh -c 'test ! -e ${join(dirname(rulesDir), 'member.json')} || exec branchgate-agent gate --wait'
TimeoutStartSec=infinity
`;

/**
 * Drop-in of PostgreSQL's unit. When the sessions of tenants take too much memory, Linux ends one of them
 * inside the unit, and PostgreSQL restarts within seconds; the agent, PgBouncer and sshd are not affected.
 */
export const postgresUnit = (layout: ServerLayout) => `\
# /etc/systemd/system/postgresql@18-main.service.d/branchgate.conf
# Next to it, set vm.overcommit_memory = 2 in /etc/sysctl.d: then a session that asks for too much gets an error.
[Service]
MemoryMax=75%
MemorySwapMax=0
# The postmaster recovers from the end of one session.
OOMPolicy=continue
# A primary whose lease has ended stops, and starts again with another one.
Restart=always
RestartSec=1
LimitNOFILE=65536
${gateOf(layout)}\
# PostgreSQL's logs are bounded by LOG_FOLDER_MB. Put them on a volume of their own (log_directory) and make it larger
# than that, so that a full log volume does not stop writes.
`;

/** What a PgBouncer may take. */
const poolerLimits = (pooler: ServerLayout['pooler']) => `\
MemoryMax=512M
# ${pooler.maxClients + SPARE_POOLER_CLIENTS} clients, ${postgresConnections(pooler)} connections to PostgreSQL, and its own files.
LimitNOFILE=${pooler.maxClients + SPARE_POOLER_CLIENTS + postgresConnections(pooler) + OWN_FILES}
`;

/** Drop-in of PgBouncer's unit. */
export const poolerUnit = (layout: ServerLayout) => `\
# /etc/systemd/system/pgbouncer.service.d/branchgate.conf
[Service]
# Also when the agent ends it, to start one with fresh memory.
Restart=always
${gateOf(layout)}${poolerLimits(layout.pooler)}\
# Its log grows with each attempt to connect. Rotate ${layout.pooler.logFile} daily and at 100 MB
# with logrotate (rename, then reload), on a volume other than PostgreSQL's data.
`;

/** Starts the standby when the agent wants it. */
export const standbyPath = (layout: ServerLayout) => `\
# /etc/systemd/system/pgbouncer-standby.path; systemctl enable --now pgbouncer-standby.path
[Unit]
Description=Standby of PgBouncer, for as long as the agent restarts PgBouncer

[Path]
PathExists=${layout.standbyMark}

[Install]
WantedBy=multi-user.target
`;

/** Unit of the standby. It ends by the agent's command, and starts again only after a crash. */
export const standbyUnit = ({ pooler, poolerUser }: ServerLayout) => `\
# /etc/systemd/system/pgbouncer-standby.service
[Unit]
Description=Standby of PgBouncer
After=network.target

[Service]
Type=notify
User=${poolerUser}
ExecStart=/usr/sbin/pgbouncer /etc/pgbouncer/pgbouncer-standby.ini
ExecReload=/bin/kill -HUP $MAINPID
KillSignal=SIGINT
Restart=on-failure
${poolerLimits(pooler)}`;

/** Renews a certificate by ACME when it is due. It runs as root, which may write the key and reload both servers. */
export const renewalUnit = () => `\
# /etc/systemd/system/branchgate-certificate.service
[Unit]
Description=renewal of the certificate of this host
Wants=network-online.target
After=network-online.target

[Service]
Type=oneshot
ExecStart=/usr/bin/branchgate-agent join --only certificate
`;

export const renewalTimer = () => `\
# /etc/systemd/system/branchgate-certificate.timer
[Timer]
OnCalendar=daily
RandomizedDelaySec=6h
Persistent=true

[Install]
WantedBy=timers.target
`;

/**
 * Drop-in of the agent's own unit, for `FIREWALL=nftables` and for POOLER_STANDBY_PORT. Without it the agent
 * may only listen at a low port.
 */
export const agentUnit = () => `\
# /etc/systemd/system/branchgate-agent.service.d/firewall.conf
# Next to it, set FIREWALL=nftables or POOLER_STANDBY_PORT in the agent's environment file. The agent changes only its own
# nftables tables.
[Service]
CapabilityBoundingSet=CAP_NET_ADMIN
AmbientCapabilities=CAP_NET_ADMIN
RestrictAddressFamilies=AF_NETLINK
`;

/** PgBouncer and its standby log each attempt to connect. The agent, which reads the log, follows a rename. */
export const poolerLogRotation = ({ pooler, agentUser }: ServerLayout) => `\
# /etc/branchgate/logrotate.conf, which branchgate-logs.timer runs. Other rules of logrotate for these files do no harm.
${pooler.logFile} {
  su ${agentUser} ${agentUser}
  size ${POOLER_LOG_MB}M
  rotate ${POOLER_LOGS_KEPT}
  dateext
  dateformat -%Y%m%d-%s
  missingok
  nocompress
  nocreate
  sharedscripts
  postrotate
    systemctl kill --signal=HUP pgbouncer.service pgbouncer-standby.service 2>/dev/null || true
  endscript
}
`;

/** The file in which logrotate remembers the logs that this service rotates. */
export const ROTATION_STATE = '/var/lib/logrotate/branchgate.status';

export const logRotationUnit = () => `\
# /etc/systemd/system/branchgate-logs.service
[Unit]
Description=rotation of PgBouncer's logs

[Service]
Type=oneshot
ExecStart=/usr/sbin/logrotate --state ${ROTATION_STATE} /etc/branchgate/logrotate.conf
`;

export const logRotationTimer = () => `\
# /etc/systemd/system/branchgate-logs.timer
[Timer]
OnCalendar=*:0/10
RandomizedDelaySec=1min

[Install]
WantedBy=timers.target
`;
