import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import type pg from 'pg';
import { type OwnSession, openSession } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';
import { type StoredMember, standbyFiles } from './stored-member.ts';

export type Primary = NonNullable<StoredMember['primary']>;

/** A session of the replication protocol, which accepts no SQL. `pg` passes the parameter on, but does not declare it. */
type ReplicationConfig = pg.ClientConfig & { replication: 'true' };

/** A session with the primary for `IDENTIFY_SYSTEM` and `BASE_BACKUP`. @throws Error when it cannot be had */
export async function openReplication(settings: AgentSettings, primary: Primary): Promise<OwnSession> {
  const { db_host: host, direct_port: port, ca_certificate: ca, login: user } = primary;
  const config: ReplicationConfig = {
    host,
    port,
    user,
    password: readPassword(settings),
    replication: 'true',
    application_name: user,
    // The password is proven and never sent, also if the certificate is another one.
    enableChannelBinding: true,
    ssl: {
      rejectUnauthorized: true,
      ...(ca !== null && { ca }),
      ...(isIP(host) === 0 && { servername: host }),
    },
  };
  return openSession(config);
}

/** The password is the last field, and has no character that is escaped there. */
const readPassword = (settings: AgentSettings): string =>
  readFileSync(standbyFiles(settings).password, 'utf8').trim().split(':').at(-1) ?? '';

/** A position in the WAL, such as `1/6A3D2C8`, in bytes. */
export function positionOf(lsn: string): number {
  const [high = '0', low = '0'] = lsn.split('/');
  return Number.parseInt(high, 16) * 2 ** 32 + Number.parseInt(low, 16);
}

const quoted = (value: string) => `'${value.replaceAll('\\', '\\\\').replaceAll("'", "\\'")}'`;
const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;

/**
 * Settings of PostgreSQL on a standby. Without workers for logical replication, a branch that follows a database applies
 * nothing right after a promotion, when what it may have missed is not known.
 */
export function standbyConf(settings: AgentSettings, primary: Primary): string {
  const { db_host, direct_port, ca_certificate, login } = primary;
  const files = standbyFiles(settings);
  const connection = Object.entries({
    host: db_host,
    port: String(direct_port),
    user: login,
    application_name: login,
    passfile: files.password,
    sslmode: 'verify-full',
    sslrootcert: ca_certificate === null ? 'system' : files.authority,
    channel_binding: 'require',
    // A server that root has started may not read the certificate in root's home.
    sslcertmode: 'disable',
    gssencmode: 'disable',
    connect_timeout: '10',
    keepalives_idle: '10',
    tcp_user_timeout: '20000',
  }).map(([name, value]) => `${name}=${quoted(value)}`);
  return `\
primary_conninfo = ${literal(connection.join(' '))}
primary_slot_name = '${login}'
max_logical_replication_workers = 0
wal_receiver_status_interval = 1s
wal_retrieve_retry_interval = 1s
`;
}
