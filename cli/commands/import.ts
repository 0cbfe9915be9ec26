import { spawn } from 'node:child_process';
import { text } from 'node:stream/consumers';
import { Command, InvalidArgumentError } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, JobError, ResponseError } from '../../client/response-error.ts';
import { COPY_JOBS } from '../../shared/limits.ts';
import { stopSignal } from '../child-command.ts';
import { ConnectionFiles, childEnvironment, libpqEnvironment } from '../connection.ts';
import { copyDatabase, ended, type Sides } from '../copy-database.ts';
import { CommandError } from '../exit-codes.ts';
import { isJson, printForPrograms, printLines, printRecord, printRecords, say } from '../output.ts';
import { letConnect } from '../own-address.ts';
import { readGiven } from '../read-text.ts';
import { openSession, projectOf } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { credentialsOf } from './connections.ts';

interface ImportOptions {
  from?: string;
  table?: string[];
  branch?: string;
  jobs: number;
  dryRun?: boolean;
  throughHere?: boolean;
  status?: boolean;
  cancel?: boolean;
}

/** One of them says what is to be done. */
const FORMS = ['from', 'status', 'cancel'] as const;

export const importCommand = () =>
  new Command('import')
    .description('Copy another PostgreSQL database into an empty main')
    .option('--from <source>', 'where the URL of the source is read: `@file`, or `-` for standard input')
    .option('--table <table...>', 'only these tables, with their schema unless it is public')
    .option('--jobs <n>', 'tables that are copied concurrently, at most 8', readJobs, COPY_JOBS.default)
    .option('--dry-run', 'only check whether the import can succeed')
    .option('--status', 'show the last import of the project')
    .option('--cancel', 'stop the import that is under way, and open main again as it was')
    .option('--through-here', 'copy with pg_dump over this computer, if the host cannot reach the source')
    .option('--branch <branch>', 'another branch, over this computer (default: the pinned branch, or main)')
    .addHelpText(
      'after',
      `
The database host connects to the source, so its address has to be public, and copies it without a limit of time.
Ctrl-C leaves the import running. Nobody can connect to main until it ends; a failure leaves main as it was.
With --through-here this command copies and has to stay open. A URL as the argument of --from and --branch have the same effect.`,
    )
    .action(async (options: ImportOptions, command: Command) => {
      if (FORMS.filter((form) => options[form] !== undefined).length !== 1)
        throw new CommandError('usage', 'Give one of --from, --status and --cancel.');
      if (options.status) return showImport(command);
      if (options.cancel) return cancelImport(command);
      // The last release knew no other way, and took the URL itself.
      const isOfBefore =
        options.branch !== undefined || (options.from !== undefined && !isHidden(options.from));
      if (options.throughHere || isOfBefore) return importThroughHere(options, command);
      return importOnHost(options, command);
    });

const isHidden = (from: string) => from === '-' || from.startsWith('@');

/** @throws CommandError for an argument that is the URL itself */
export async function readHiddenUrl(from: string): Promise<string> {
  if (!isHidden(from))
    throw new CommandError(
      'usage',
      'Arguments are visible to all users of this machine. Write the URL to a file and give --from @file, or --from - for standard input.',
    );
  return (await readSourceUrl(from)).href;
}

type Job = Schemas['Job'];

async function importOnHost({ from = '', table, jobs, dryRun }: ImportOptions, command: Command) {
  const source_url = await readHiddenUrl(from);
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  const body = { source_url, jobs, ...(table && { tables: table }) };
  const checked = session.client.api.POST('/api/v1/projects/{project_id}/import/probe', {
    params: { path },
    body,
  });
  const probe = await withProgress('Checking the source', () => listingFindings(command, dataOf(checked)));
  if (!isJson(command)) printFindings(probe.warnings);
  if (dryRun) {
    say('The import can begin.');
    printForPrograms(command, probe);
    return;
  }
  const started = session.client.api.POST('/api/v1/projects/{project_id}/import', { params: { path }, body });
  const job = await listingFindings(command, dataOf(started));
  say(`Job ${job.id}. Ctrl-C leaves it running: branchgate import --status shows it, --cancel stops it.`);
  const done = await withProgress('Importing', (onProgress) =>
    session.client.waitForJob(job.id, { onProgress }),
  );
  say('Imported into main.');
  showTables(command, done);
}

/** The job with a line for each table. */
function showTables(command: Command, job: Job): void {
  if (isJson(command)) {
    printRecord(command, job);
    return;
  }
  const step = job.steps.find(({ tables }) => tables !== undefined);
  printRecords(command, step?.tables ?? [], ['schema', 'table', 'state', 'rows', 'percent']);
  for (const warning of step?.warnings ?? []) say(warning);
}

async function showImport(command: Command): Promise<void> {
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  for await (const job of session.client.all('/api/v1/projects/{project_id}/jobs', { params: { path } }))
    if (job.kind === 'branch.import') {
      say([`Job ${job.id}: ${job.status}.`, job.error?.message].filter(Boolean).join(' '));
      showTables(command, job);
      return;
    }
  throw new CommandError('notFound', 'The project has no import.');
}

/** @returns null if the job was cancelled */
export async function unlessCancelled(work: Promise<Job>): Promise<Job | null> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof JobError && error.code === 'JOB_CANCELLED') return null;
    throw error;
  }
}

async function cancelImport(command: Command): Promise<void> {
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  const { id } = await dataOf(
    session.client.api.DELETE('/api/v1/projects/{project_id}/import', { params: { path } }),
  );
  await withProgress('Cancelling', () => unlessCancelled(session.client.waitForJob(id)));
  say('Cancelled. main is open again, as it was.');
  printForPrograms(
    command,
    await dataOf(session.client.api.GET('/api/v1/jobs/{job_id}', { params: { path: { job_id: id } } })),
  );
}

/** The source is read by pg_dump in one snapshot. After a failure the branch is emptied again. */
async function importThroughHere(options: ImportOptions, command: Command): Promise<void> {
  if (options.table) throw new CommandError('usage', '--table and --through-here exclude each other.');
  const source = await readSourceUrl(options.from ?? '');
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
}

function readJobs(text: string): number {
  if (!/^[1-8]$/.test(text)) throw new InvalidArgumentError('Give a number from 1 to 8.');
  return Number(text);
}

type Finding = Schemas['SourceFinding'];

export function printFindings(findings: readonly Finding[]): void {
  printLines(
    findings.flatMap(({ severity, message, statement }) => [
      `${severity}: ${message}`,
      ...(statement === null ? [] : [`  ${statement}`]),
    ]),
  );
}

/** Prints everything that is wrong with a source, if the work fails for that. */
export async function listingFindings<T>(command: Command, work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof ResponseError) || error.code !== 'SOURCE_UNSUITABLE' || isJson(command))
      throw error;
    printFindings((error.fields.details ?? []) as Finding[]);
    throw new CommandError('usage', 'The source cannot be used. This is everything that is wrong.');
  }
}

/** A URL in an argument is visible to every user of the machine, so it can be read from elsewhere. */
async function readSourceUrl(given: string): Promise<URL> {
  const read = (await readGiven(given)).trim();
  const url = URL.canParse(read) ? new URL(read) : null;
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
