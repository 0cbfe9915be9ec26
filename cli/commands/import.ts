import { Command, InvalidArgumentError, Option } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf, JobError, ResponseError } from '../../client/response-error.ts';
import { COPY_JOBS } from '../../shared/limits.ts';
import { CommandError } from '../exit-codes.ts';
import { isJson, printForPrograms, printLines, printRecord, printRecords, say } from '../output.ts';
import { readGiven } from '../read-text.ts';
import { openSession, projectOf } from '../session.ts';
import { type SourceOptions, sourceFields, withSourceOptions } from '../source-options.ts';
import { withProgress } from '../terminal.ts';

interface ImportOptions extends SourceOptions {
  from?: string;
  branch?: string;
  jobs: number;
  dryRun?: boolean;
  throughHere?: boolean;
  status?: boolean;
  cancel?: boolean;
}

const REMOVED =
  'import no longer copies over this computer. Use pg_dump --no-owner --no-privileges … | branchgate psql [branch] -- --set ON_ERROR_STOP=1 --single-transaction (docs/importing.md).';

/** Exactly one of these options is given. */
const FORMS = ['from', 'status', 'cancel'] as const;

export const importCommand = () =>
  withSourceOptions(
    new Command('import')
      .description('Copy another PostgreSQL database into an empty main')
      .option('--from <source>', 'where the URL of the source is read: `@file`, or `-` for standard input'),
  )
    .option('--jobs <n>', 'tables that are copied concurrently, at most 8', readJobs, COPY_JOBS.default)
    .option('--dry-run', 'only check whether the import can succeed')
    .option('--status', 'show the last import of the project')
    .option('--cancel', 'stop the import that is under way, and open main again as it was')
    .addOption(new Option('--through-here', 'removed').hideHelp())
    .addOption(new Option('--branch <branch>', 'removed').hideHelp())
    .addHelpText(
      'after',
      `
The database host connects to the source, so its address has to be public, and copies it without a limit of time.
Ctrl-C leaves the import running. Nobody can connect to main until it ends; a failure leaves main as it was.
Copy a source that the host cannot reach with pg_dump and branchgate psql: docs/importing.md.`,
    )
    .action(async (options: ImportOptions, command: Command) => {
      if (FORMS.filter((form) => options[form] !== undefined).length !== 1)
        throw new CommandError('usage', 'Give one of --from, --status and --cancel.');
      if (options.status) return showImport(command);
      if (options.cancel) return cancelImport(command);
      if (options.throughHere || options.branch !== undefined) throw new CommandError('usage', REMOVED);
      return importOnHost(options, command);
    });

/**
 * The URL of a source, from a file or standard input: arguments are visible to every user of the machine.
 * @throws CommandError
 */
export async function readHiddenUrl(from: string): Promise<string> {
  if (from !== '-' && !from.startsWith('@'))
    throw new CommandError(
      'usage',
      'Arguments are visible to all users of this machine. Write the URL to a file and give --from @file, or --from - for standard input.',
    );
  const read = (await readGiven(from)).trim();
  if (!URL.canParse(read) || !/^postgres(?:ql)?:$/.test(new URL(read).protocol))
    throw new CommandError('usage', 'The source is not the URL of a PostgreSQL database.');
  return new URL(read).href;
}

type Job = Schemas['Job'];

async function importOnHost(options: ImportOptions, command: Command) {
  const { from = '', jobs, dryRun } = options;
  const source_url = await readHiddenUrl(from);
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  const body = { source_url, jobs, ...sourceFields(options) };
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
    throw new CommandError('conflict', 'The source cannot be used. This is everything that is wrong.');
  }
}
