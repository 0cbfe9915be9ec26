import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { mkdtemp, readFile, readlink, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { inSession, PLATFORM_ROLE, type Session } from '../postgres/connect.ts';
import { SECOND_SERVER } from '../postgres/tenant-code.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';

/**
 * A second PostgreSQL over a copy of this host's data, for a recovery. Its socket is in a folder that only the agent's user
 * may enter, and it has no other way in or out: no network, no port, no worker of replication, no preloaded library.
 */

const run = promisify(execFile);

/** The port is a part of the socket's name. */
const PORT = 5432;
const POLL_EVERY_MS = 50;
const END_WITHIN_MS = 10_000;
const LINES_KEPT = 40;
/** A link in the folder of a recovery. */
const SOCKETS = 'sockets';

/** As a setting: PostgreSQL replaces `%` in commands. */
const inCommand = (path: string) => `'${path.replaceAll("'", "'\\''").replaceAll('%', '%%')}'`;
const quoted = (text: string) => `'${text.replaceAll("'", "''")}'`;

/** Replays the WAL up to a time, and serves then. */
interface Replay {
  /** With microseconds. */
  at: string;
  /** Ends the replay at this position of the WAL instead. */
  position?: string | undefined;
  /** True: the server stops at the time, and can replay further. */
  stops?: boolean;
  /** Folder of the archive. */
  wal: string;
}

function configuration(sockets: string, replay: Replay | null): string {
  const recovery = replay && {
    restore_command: `cp --reflink=auto ${inCommand(replay.wal)}/%f "%p"`,
    ...(replay.position === undefined
      ? // PostgreSQL reads the setting before it knows names of time zones.
        { recovery_target_time: replay.at.replace('T', ' ').replace('Z', '+00') }
      : { recovery_target_lsn: replay.position, recovery_target_inclusive: 'off' }),
    recovery_target_action: replay.stops ? 'shutdown' : 'promote',
  };
  const settings: Record<string, string | number> = {
    listen_addresses: '',
    unix_socket_directories: sockets,
    unix_socket_permissions: '0700',
    port: PORT,
    hot_standby: 'off',
    archive_mode: 'off',
    // The worker of a subscription would ask the real source for its slot.
    max_logical_replication_workers: 0,
    // PostgreSQL does not start with fewer than are in use.
    max_active_replication_origins: SECOND_SERVER.origins,
    max_connections: SECOND_SERVER.connections,
    max_locks_per_transaction: 1024,
    max_parallel_workers: 0,
    max_parallel_maintenance_workers: 0,
    shared_preload_libraries: '',
    session_preload_libraries: '',
    local_preload_libraries: '',
    jit: 'off',
    autovacuum: 'off',
    // Against wraparound it would run all the same.
    autovacuum_freeze_max_age: 2_000_000_000,
    autovacuum_multixact_freeze_max_age: 2_000_000_000,
    shared_buffers: `${SECOND_SERVER.buffersMb}MB`,
    temp_file_limit: `${SECOND_SERVER.temporaryMb}MB`,
    dynamic_shared_memory_type: 'mmap',
    io_method: 'sync',
    // A copy that is lost with the machine is removed and made again.
    fsync: 'off',
    synchronous_commit: 'off',
    full_page_writes: 'off',
    restart_after_crash: 'off',
    summarize_wal: 'off',
    // A segment that is used again would keep what other tenants wrote.
    wal_recycle: 'off',
    wal_init_zero: 'on',
    file_copy_method: 'clone',
    // Every owner of a large object has it read.
    lo_compat_privileges: 'on',
    logging_collector: 'off',
    log_destination: 'stderr',
    log_line_prefix: '',
    ...recovery,
  };
  return Object.entries(settings)
    .map(([name, value]) => `${name} = ${quoted(String(value))}\n`)
    .join('');
}

/** The program that has written the data: PostgreSQL notes its command line, with quoted arguments. */
async function readProgram(dataDir: string): Promise<string> {
  const line = await readFile(join(dataDir, 'postmaster.opts'), 'utf8').catch(() => '');
  const [program = ''] = line.trim().split(' "', 1);
  if (!program.startsWith('/')) throw new HostError('POSTGRES_UNAVAILABLE', 'PostgreSQL does not run');
  return program;
}

/** Starts a program in a network without interfaces. The files keep their owner. */
const IN_NO_NETWORK = ['/usr/bin/unshare', '--user', '--map-current-user', '--net', '--'];

/** Some kernels and containers refuse namespaces to users. The server has no port and no worker there all the same. */
let noNetwork: Promise<readonly string[]> | null = null;

const inNoNetwork = (program: readonly string[]): Promise<readonly string[]> =>
  run('/usr/bin/setpriv', [...program, ...IN_NO_NETWORK, '/bin/true']).then(
    () => IN_NO_NETWORK,
    () => [],
  );

interface Started {
  child: ChildProcess;
  ended: Promise<void>;
}

export class SecondServer {
  readonly #settings: Pick<AgentSettings, 'PGDATA_DIR'>;
  readonly #data: string;
  readonly #sockets: string;
  readonly #lines: string[] = [];
  #onLine: (line: string) => void = () => {};
  #started: Started | null = null;

  private constructor(settings: Pick<AgentSettings, 'PGDATA_DIR'>, data: string, sockets: string) {
    this.#settings = settings;
    this.#data = data;
    this.#sockets = sockets;
  }

  /** Nothing runs yet. @param folder of the recovery, which has the copy in `data` */
  static async in(settings: Pick<AgentSettings, 'PGDATA_DIR'>, folder: string): Promise<SecondServer> {
    // The path of a socket has at most 107 bytes.
    const sockets = await mkdtemp(join(tmpdir(), 'branchgate-past-'));
    await symlink(sockets, join(folder, SOCKETS));
    return new SecondServer(settings, join(folder, 'data'), sockets);
  }

  /** Ends what a killed agent has left in the folder of a recovery. */
  static async endLeft(folder: string): Promise<void> {
    const data = join(folder, 'data');
    const pid =
      (await readFile(join(data, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n', 1)[0] ?? '';
    // The number can be another process's by now, such as that of this host's own server.
    const command = await readFile(`/proc/${Number(pid)}/cmdline`, 'utf8').catch(() => '');
    if (command.split('\0').includes(data)) process.kill(Number(pid), 'SIGKILL');
    const sockets = await readlink(join(folder, SOCKETS)).catch(() => null);
    if (sockets !== null) await rm(sockets, { recursive: true, force: true });
  }

  /** Where sessions connect. */
  get address(): { host: string; port: number } {
    return { host: this.#sockets, port: PORT };
  }

  /** What the server has written last, one line each. */
  get lines(): readonly string[] {
    return this.#lines;
  }

  /**
   * @param admitted databases and the logins that they accept
   * @param onLine gets what the server writes
   * @throws HostError POSTGRES_UNAVAILABLE if PostgreSQL does not run on this host
   */
  async start(
    replay: Replay | null,
    admitted: readonly (readonly [database: string, login: string])[],
    onLine: (line: string) => void = () => {},
  ): Promise<void> {
    const program = await readProgram(this.#settings.PGDATA_DIR);
    const files = {
      'postgresql.conf': configuration(this.#sockets, replay),
      // The folder of the socket admits the agent's user alone.
      'pg_hba.conf': admitted.map(([database, login]) => `local "${database}" "${login}" trust\n`).join(''),
      'pg_ident.conf': '',
      ...(replay && { 'recovery.signal': '' }),
    };
    for (const [name, text] of Object.entries(files))
      await writeFile(join(this.#data, name), text, { mode: 0o600 });
    this.#onLine = onLine;
    const { addressBytes, nice } = SECOND_SERVER;
    // The loader finds the libraries next to a program only if both users of the process are the same.
    const asUser = ['--ruid', String(process.geteuid?.())];
    noNetwork ??= inNoNetwork(asUser);
    const command = [
      ...asUser,
      ...(await noNetwork),
      ...['/usr/bin/setpriv', '--pdeathsig', 'KILL'],
      ...['/usr/bin/prlimit', `--as=${addressBytes}`, '--core=0'],
      ...['/usr/bin/nice', '-n', String(nice)],
      ...[program, '-D', this.#data],
    ];
    const child = spawn('/usr/bin/setpriv', command, {
      cwd: this.#data,
      env: { PATH: '/usr/bin:/bin', LC_ALL: 'C' },
      stdio: ['ignore', 'ignore', 'pipe'],
    });
    const ended = new Promise<void>((resolve) => {
      child.once('error', () => resolve());
      child.once('close', () => resolve());
    });
    createInterface({ input: child.stderr }).on('line', (line) => {
      this.#lines.push(line);
      if (this.#lines.length > LINES_KEPT) this.#lines.shift();
      this.#onLine(line);
    });
    this.#started = { child, ended };
  }

  get isRunning(): boolean {
    const { child } = this.#started ?? {};
    return child !== undefined && child.exitCode === null && child.signalCode === null;
  }

  /** Waits until a replay that stops has ended. @returns false if it has ended otherwise */
  async hasStopped(signal: AbortSignal): Promise<boolean> {
    const { child, ended } = this.#started ?? {};
    if (!child) return false;
    const abort = () => child.kill('SIGQUIT');
    signal.addEventListener('abort', abort, { once: true });
    await ended;
    signal.removeEventListener('abort', abort);
    return this.#lines.some((line) => line.includes('recovery stopping')) && !signal.aborted;
  }

  /**
   * Waits until the server accepts sessions.
   * @param within milliseconds
   * @returns false if it has ended, or is not ready in time
   */
  async isReady(user: string, database: string, within: number, signal: AbortSignal): Promise<boolean> {
    const accepts = async () => {
      if (!this.isRunning) return 'ended';
      return this.session(user, database, async () => true).catch(() => null);
    };
    return (await pollUntil(accepts, { within, every: POLL_EVERY_MS, signal })) === true;
  }

  session<T>(user: string, database: string, action: (session: Session) => Promise<T>): Promise<T> {
    return inSession({ ...this.address, user, database, application_name: 'branchgate-agent' }, action);
  }

  /** A session of the superuser in the agent's own database, which has no object of a tenant. */
  asPlatform<T>(action: (session: Session) => Promise<T>): Promise<T> {
    return this.session(PLATFORM_ROLE, PLATFORM_ROLE, action);
  }

  /** @param how `clean`: everything that was written is in the files then; `immediate`: they are not needed any more */
  async stop(how: 'clean' | 'immediate'): Promise<void> {
    const started = this.#started;
    if (!started) return;
    if (this.isRunning) started.child.kill(how === 'clean' ? 'SIGINT' : 'SIGQUIT');
    const late = setTimeout(() => started.child.kill('SIGKILL'), END_WITHIN_MS);
    await started.ended;
    clearTimeout(late);
    this.#started = null;
  }

  /** Stops it, and removes the folder of its socket. */
  async remove(): Promise<void> {
    await this.stop('immediate');
    await rm(this.#sockets, { recursive: true, force: true });
  }
}
