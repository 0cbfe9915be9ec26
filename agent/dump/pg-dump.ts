import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { access, constants, mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { type Archive, ArchiveError, readArchive } from './archive.ts';

/**
 * PostgreSQL's own program for dumps. What it reads may be a hostile server's, so it gets an environment and a folder of its
 * own, bounds of memory, file size and time, and nothing of a tenant as an argument, which every user of this machine can
 * read.
 */

export type DumpSettings = Pick<AgentSettings, 'STATE_DIR' | 'POSTGRES_BIN'>;

/** Where a dump connects, in the variables of libpq (PostgreSQL documentation, 32.15). */
export interface DumpConnection {
  variables: Readonly<Record<string, string>>;
  /** A login that needs none is admitted over the unix socket. */
  password?: string;
  /** Certificates of the authorities that the server's has to be of. */
  authorities?: string;
}

export interface DumpOptions {
  /** The snapshot of another session; null: one of its own. */
  snapshot?: string | null;
  /** The role that it acts as. */
  role?: string;
  /** Schemas and tables that it neither locks nor reads. */
  excluded?: { schemas: readonly string[]; tables: readonly (readonly [schema: string, name: string])[] };
  /** The dump also has rights, publications and security labels, as a comparison needs them. */
  isWhole?: boolean;
  /** Milliseconds. */
  within: number;
  signal?: AbortSignal;
}

/** Why there is no dump. */
export class DumpError extends Error {
  override readonly name = 'DumpError';
  /**
   * `refused`: the server or libpq said why; `disconnected`: there was no connection, or it ended, or the session that held the snapshot did; `too_large`,
   * `too_long`: it was ended; `killed`: by something else on this machine; `stopped`: the signal was aborted.
   */
  readonly reason: 'refused' | 'disconnected' | 'too_large' | 'too_long' | 'killed' | 'stopped';
  /** By which its session can be found. It may still be there. */
  readonly applicationName: string;

  constructor(reason: DumpError['reason'], message: string, applicationName: string) {
    super(message);
    this.reason = reason;
    this.applicationName = applicationName;
  }
}

/** Migrations hold locks, and everything behind a dump that waits would wait too. */
const LOCK_WITHIN = '2s';
/** A lying server can send without end, all of which the program would keep. */
const MEMORY_BYTES = 2 * 2 ** 30;
const FILE_BYTES = 64 * 2 ** 20;
/** Of its messages, the last of which says what is wrong. */
const STDERR_BYTES = 16_384;
/** Names the sessions of dumps. */
const DUMPING = 'branchgate-dump';
const FOLDER = 'dumps';

/** @throws HostError INTERNAL */
async function requireProgram({ POSTGRES_BIN }: DumpSettings): Promise<string> {
  const program = join(POSTGRES_BIN, 'pg_dump');
  await access(program, constants.X_OK).catch(() => {
    throw new HostError(
      'INTERNAL',
      `${program} is missing: install postgresql-client-18, or set POSTGRES_BIN to the folder of the programs`,
    );
  });
  return program;
}

const run = promisify(execFile);

/** @returns the major version of the program, or null if it does not run */
export async function readDumpVersion({
  POSTGRES_BIN,
}: Pick<DumpSettings, 'POSTGRES_BIN'>): Promise<number | null> {
  const said = await run(join(POSTGRES_BIN, 'pg_dump'), ['--version'], { env: {} }).catch(() => null);
  const [, major] = /^pg_dump \(PostgreSQL\) (\d+)/.exec(said?.stdout ?? '') ?? [];
  return major === undefined ? null : Number(major);
}

/** Dumps of an agent that was killed. To be called before the first one of this process. */
export const removeLeftDumps = ({ STATE_DIR }: Pick<AgentSettings, 'STATE_DIR'>): Promise<void> =>
  rm(join(STATE_DIR, FOLDER), { recursive: true, force: true });

/**
 * Dumps the schema of a database, without owners and privileges.
 * @throws DumpError, HostError HOST_FULL, and INTERNAL without the program
 */
export async function dumpSchema(
  settings: DumpSettings,
  connection: DumpConnection,
  options: DumpOptions,
): Promise<Archive> {
  const program = await requireProgram(settings);
  const parent = join(settings.STATE_DIR, FOLDER);
  await mkdir(parent, { recursive: true, mode: 0o700 });
  const folder = await mkdtemp(join(parent, 'dump-'));
  const name = `${DUMPING}-${randomBytes(8).toString('hex')}`;
  try {
    const variables = await writeConnection(folder, connection);
    const args = await argumentsOf(folder, options);
    const env = {
      PATH: '/usr/bin:/bin',
      HOME: folder,
      LC_ALL: 'C',
      PGAPPNAME: name,
      ...variables,
    };
    await runBounded([program, ...args], env, folder, name, options);
    const toc = await readFile(join(folder, 'archive/toc.dat'));
    try {
      return readArchive(toc);
    } catch (error) {
      if (error instanceof ArchiveError)
        throw new HostError('INTERNAL', `pg_dump in ${settings.POSTGRES_BIN}: ${error.message}`);
      throw error;
    }
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** Writes what libpq reads from files, and returns the variables. */
async function writeConnection(
  folder: string,
  { variables, password, authorities }: DumpConnection,
): Promise<Record<string, string>> {
  const written: Record<string, string> = { ...variables, PGPASSFILE: join(folder, 'password') };
  const line =
    password === undefined ? '' : `*:*:*:*:${password.replaceAll(/[\\:]/g, (special) => `\\${special}`)}\n`;
  await writeFile(join(folder, 'password'), line, { mode: 0o600 });
  if (authorities !== undefined) {
    const path = join(folder, 'authorities.pem');
    await writeFile(path, authorities, { mode: 0o600 });
    written.PGSSLROOTCERT = path;
  }
  return written;
}

/** As the file of a filter names an object. Within the quotes nothing is a pattern. */
const inFilter = (name: string) => `"${name.replaceAll('"', '""')}"`;

async function argumentsOf(
  folder: string,
  { snapshot, role, excluded, isWhole = false }: DumpOptions,
): Promise<string[]> {
  const { schemas = [], tables = [] } = excluded ?? {};
  const lines = [
    ...schemas.map((schema) => `exclude schema ${inFilter(schema)}\n`),
    ...tables.map((table) => `exclude table ${table.map(inFilter).join('.')}\n`),
  ];
  await writeFile(join(folder, 'filter'), lines.join(''), { mode: 0o600 });
  return [
    ...['--format=directory', `--file=${join(folder, 'archive')}`, '--compress=none', '--no-sync'],
    ...['--schema-only', '--no-statistics', '--no-owner', '--no-tablespaces'],
    ...['--encoding=UTF8', `--lock-wait-timeout=${LOCK_WITHIN}`, '--no-password'],
    ...(isWhole
      ? []
      : ['--no-privileges', '--no-publications', '--no-subscriptions', '--no-security-labels']),
    ...(lines.length > 0 ? [`--filter=${join(folder, 'filter')}`] : []),
    ...(snapshot == null ? [] : [`--snapshot=${snapshot}`]),
    ...(role === undefined ? [] : [`--role=${role}`]),
  ];
}

async function runBounded(
  command: readonly string[],
  env: Record<string, string>,
  folder: string,
  name: string,
  { within, signal }: DumpOptions,
): Promise<void> {
  signal?.throwIfAborted();
  // It ends with the agent, and takes no more than these bounds.
  const bounds = [
    ...['--pdeathsig', 'KILL', '/usr/bin/prlimit'],
    ...[`--as=${MEMORY_BYTES}`, `--fsize=${FILE_BYTES}`, '--core=0'],
  ];
  const child = spawn('/usr/bin/setpriv', [...bounds, '--', ...command], {
    env,
    cwd: folder,
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let said = '';
  child.stderr?.on('data', (chunk: Buffer) => {
    said = `${said}${chunk}`.slice(-STDERR_BYTES);
  });
  let ended: DumpError | null = null;
  const end = (reason: 'too_long' | 'stopped') => {
    ended ??= new DumpError(reason, reason === 'stopped' ? 'it was stopped' : 'it took too long', name);
    killGroup(child);
  };
  const timer = setTimeout(end, within, 'too_long');
  const stop = () => end('stopped');
  signal?.addEventListener('abort', stop);
  try {
    const [code, killedBy] = await new Promise<[number | null, NodeJS.Signals | null]>((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (...exit) => resolve(exit));
    });
    if (ended) throw ended;
    if (killedBy === 'SIGXFSZ' || /File too large|out of memory/i.test(said))
      throw new DumpError('too_large', 'the schema is too large', name);
    if (/No space left on device/.test(said))
      throw new HostError('HOST_FULL', `the folder ${folder} has no room for a dump`);
    if (killedBy) throw new DumpError('killed', `pg_dump ended with ${killedBy}`, name);
    if (code !== 0)
      throw new DumpError(
        isDisconnected(said) ? 'disconnected' : 'refused',
        said || `pg_dump ended with ${code}`,
        name,
      );
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
    killGroup(child);
  }
}

/** Messages of pg_dump and libpq, in English, about a connection that failed or ended. */
const DISCONNECTED = new RegExp(
  [
    'connection to server',
    'server closed the connection',
    'SSL (?:connection|SYSCALL|error)',
    'could not (?:receive|send) data',
    'no connection to the server',
    'terminating connection',
    'the database system is',
    'snapshot "[^"]*" does not exist',
  ].join('|'),
);

/** The line of its messages that says why it ended. */
export const errorOfDump = (said: string): string =>
  said.split('\n').find((line) => line.startsWith('pg_dump: error:')) ?? said;

export const isDisconnected = (said: string) => DISCONNECTED.test(errorOfDump(said));

/** It leads a group of its own. */
function killGroup({ pid }: ChildProcess): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}
