import { spawn } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import { Command, InvalidArgumentError } from 'commander';
import { stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment, libpqEnvironment } from '../connection.ts';
import { copyDatabase, ended, type Sides } from '../copy-database.ts';
import { CommandError } from '../exit-codes.ts';
import { printForPrograms, say } from '../output.ts';
import { letConnect } from '../own-address.ts';
import { openSession } from '../session.ts';
import { credentialsOf } from './connections.ts';

interface ImportOptions {
  from: string;
  branch?: string;
  jobs: number;
  dryRun?: boolean;
}

/** The source is read by pg_dump in one snapshot. After a failure the branch is emptied again. */
export const importCommand = () =>
  new Command('import')
    .description('Copy another PostgreSQL database into an empty branch')
    .requiredOption(
      '--from <url>',
      'URL of the source; `@file` reads it from a file, `-` from standard input',
    )
    .option('--branch <branch>', 'name or ID of the target (default: the pinned branch, or main)')
    .option('--jobs <n>', 'large tables that are copied concurrently, at most 8', readJobs, 2)
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
          if (!options.dryRun) await copyDatabase(sides, size, options.jobs);
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

function readJobs(text: string): number {
  if (!/^[1-8]$/.test(text)) throw new InvalidArgumentError('Give a number from 1 to 8.');
  return Number(text);
}

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
