import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { Transform } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { Command } from 'commander';
import { stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment, libpqEnvironment } from '../connection.ts';
import { CommandError } from '../exit-codes.ts';
import { printForPrograms, say } from '../output.ts';
import { letConnect } from '../own-address.ts';
import { openSession } from '../session.ts';
import { isAttended } from '../terminal.ts';
import { credentialsOf } from './connections.ts';

interface ImportOptions {
  from: string;
  branch?: string;
  dryRun?: boolean;
}

/** The source is read by pg_dump and loaded as one transaction, so a failure leaves the branch as it was. */
export const importCommand = () =>
  new Command('import')
    .description('Copy another PostgreSQL database into an empty branch')
    .requiredOption(
      '--from <url>',
      'URL of the source; `@file` reads it from a file, `-` from standard input',
    )
    .option('--branch <branch>', 'name or ID of the target (default: the pinned branch, or main)')
    .option('--dry-run', 'only check whether the import can succeed')
    .action(async (options: ImportOptions, command: Command) => {
      const source = await readSourceUrl(options.from);
      const session = openSession(command);
      const credentials = await credentialsOf(command, session, options.branch);
      const signal = stopSignal();
      const files = new ConnectionFiles();
      try {
        const target = childEnvironment(credentials, files);
        const sides = { from: sourceEnvironment(source, files), target, signal };
        const removeRule = await letConnect(session, credentials);
        try {
          const size = await preflight(sides);
          if (!options.dryRun) await load(sides, size);
          const { branch_id, branch_name } = credentials;
          say(options.dryRun ? 'The import can begin.' : `Imported into ${branch_name}.`);
          printForPrograms(command, { branch_id, branch_name, source_bytes: size });
        } finally {
          await removeRule();
        }
      } finally {
        files.remove();
      }
    });

/** A URL in an argument is visible to every user of the machine, so it can be read from elsewhere. */
export async function readSourceUrl(given: string): Promise<URL> {
  const read =
    given === '-'
      ? await text(process.stdin)
      : given.startsWith('@')
        ? await readFile(given.slice(1), 'utf8')
        : given;
  const url = URL.canParse(read.trim()) ? new URL(read.trim()) : null;
  if (!url || !/^postgres(?:ql)?:$/.test(url.protocol))
    throw new CommandError('usage', 'The source is not the URL of a PostgreSQL database.');
  return url;
}

/** What the programs of both sides get. The signal ends them. */
interface Sides {
  from: NodeJS.ProcessEnv;
  target: NodeJS.ProcessEnv;
  signal: AbortSignal;
}

function sourceEnvironment(source: URL, files: ConnectionFiles): NodeJS.ProcessEnv {
  files.addPassword(source.href);
  const { PGPASSWORD: _, ...inherited } = process.env;
  return {
    ...inherited,
    ...libpqEnvironment(source.href),
    PGPASSFILE: files.passwordFile,
    // Its authority is the caller's matter, as are all other settings of the source.
    PGSSLMODE: source.searchParams.get('sslmode') ?? process.env.PGSSLMODE ?? 'prefer',
  };
}

/** Rows of a query, each with its columns. @throws CommandError with the message of psql */
async function query(sides: Sides, side: 'source' | 'branch', sql: string): Promise<string[][]> {
  const { from, target, signal } = sides;
  const child = spawn(
    'psql',
    ['--no-psqlrc', '--no-align', '--tuples-only', '--field-separator=\t', '--no-password', '-c', sql],
    { env: side === 'source' ? from : target, stdio: ['ignore', 'pipe', 'pipe'], signal },
  );
  const [output, errors] = await Promise.all([text(child.stdout), text(child.stderr), ended(child, 'psql')]);
  if (child.exitCode !== 0) {
    const wayOut =
      side === 'source' && /does not support SSL/.test(errors)
        ? ' The source has no TLS. Add ?sslmode=disable to its URL if the network between is trusted.'
        : '';
    throw new CommandError('failed', `The ${side} refused: ${errors.trim()}${wayOut}`);
  }
  return output
    .split('\n')
    .filter(Boolean)
    .map((line) => line.split('\t'));
}

async function ended(child: ChildProcess, program: string): Promise<void> {
  // It also rejects with the error of a program that cannot be started, or is stopped.
  await once(child, 'close').catch((error: NodeJS.ErrnoException) => {
    if (error.name === 'AbortError') throw error.cause;
    throw new CommandError(
      'failed',
      error.code === 'ENOENT' ? `${program} is not installed.` : error.message,
    );
  });
}

const USER_SCHEMAS = `nspname !~ '^pg_' and nspname <> 'information_schema'`;

const SOURCE = `select current_setting('server_version_num'), pg_database_size(current_database())`;
const EXTENSIONS = `select extname from pg_extension where extname <> 'plpgsql' order by 1`;
const TARGET = `select (select count(*) from pg_class c join pg_namespace n on n.oid = relnamespace where ${USER_SCHEMAS} and relkind in ('r', 'p', 'v', 'm', 'S'))`;
const AVAILABLE = 'select name from pg_available_extensions';

/** Checks what would make the import fail halfway. @returns the size of the source in bytes */
async function preflight(sides: Sides): Promise<number> {
  const [[version = '0', size = '0'] = []] = await query(sides, 'source', SOURCE);
  const dumper = spawn('pg_dump', ['--version'], { stdio: ['ignore', 'pipe', 'ignore'] });
  const [printed] = await Promise.all([text(dumper.stdout), ended(dumper, 'pg_dump')]);
  const dumperMajor = Number(/(\d+)/.exec(printed.replace(/^\D*/, ''))?.[1] ?? 0);
  const sourceMajor = Math.floor(Number(version) / 10_000);
  if (dumperMajor < sourceMajor)
    throw new CommandError(
      'failed',
      `pg_dump ${dumperMajor} cannot read PostgreSQL ${sourceMajor}. Install PostgreSQL ${sourceMajor}'s client programs.`,
    );
  const [[objects = '0'] = []] = await query(sides, 'branch', TARGET);
  if (objects !== '0')
    throw new CommandError(
      'conflict',
      'The branch is not empty. Create a project for the import, or drop its tables first.',
    );
  const available = new Set((await query(sides, 'branch', AVAILABLE)).flat());
  const missing = (await query(sides, 'source', EXTENSIONS)).flat().filter((name) => !available.has(name));
  if (missing.length > 0)
    throw new CommandError(
      'failed',
      `The host does not have these extensions of the source: ${missing.join(', ')}.`,
    );
  return Number(size);
}

const DUMP = [
  '--no-owner',
  '--no-privileges',
  '--no-publications',
  '--no-subscriptions',
  '--no-password',
  '--format=plain',
];
const LOAD = [
  '--no-psqlrc',
  '--quiet',
  '--no-password',
  '--single-transaction',
  '--set=ON_ERROR_STOP=1',
  '--output=/dev/null',
];

async function load({ from, target, signal }: Sides, size: number): Promise<void> {
  const dump = spawn('pg_dump', DUMP, { env: from, stdio: ['ignore', 'pipe', 'inherit'], signal });
  const psql = spawn('psql', LOAD, { env: target, stdio: ['pipe', 'ignore', 'inherit'], signal });
  const progress = progressLine(size);
  const stopped = pipeline(dump.stdout, progress.counter, psql.stdin).catch(() => {});
  await Promise.all([ended(dump, 'pg_dump'), ended(psql, 'psql'), stopped]);
  progress.clear();
  if (dump.exitCode !== 0 || psql.exitCode !== 0)
    throw new CommandError(
      'failed',
      'The import failed, and the branch is as it was. See the message above.',
    );
}

/** A dump is about as large as its database without indexes, so the share is a rough one. */
function progressLine(size: number) {
  let bytes = 0;
  let shownAt = 0;
  const megabytes = (value: number) => (value / 1024 / 1024).toFixed(0);
  const counter = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      bytes += chunk.length;
      if (isAttended() && Date.now() - shownAt > 200) {
        shownAt = Date.now();
        process.stderr.write(
          `\r\x1b[K${megabytes(bytes)} MiB read; the source has ${megabytes(size)} MiB with indexes`,
        );
      }
      done(null, chunk);
    },
  });
  return { counter, clear: () => isAttended() && process.stderr.write('\r\x1b[K') };
}
