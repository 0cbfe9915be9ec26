import { Command } from 'commander';
import { type Change, endOfChange } from '../../client/changes.ts';
import { dataOf } from '../../client/response-error.ts';
import { forecastText } from '../../shared/forecast-text.ts';
import { take } from '../../shared/take.ts';
import { CommandError, EXIT_CODES } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { readCount } from '../option-values.ts';
import { isJson, printLines, printRecord, printRecords, printSections, say } from '../output.ts';
import { readText } from '../read-text.ts';
import { openSession, optionsOf, projectOf, type Session } from '../session.ts';
import { confirm, withProgress } from '../terminal.ts';

const CHANGES = '/api/v1/projects/{project_id}/changes';
const CHANGE = `${CHANGES}/{change_id}` as const;
const DIFF = '/api/v1/projects/{project_id}/branches/{branch_ref}/diff';

const COLUMNS = ['id', 'state', 'source', 'statement_count', 'applied_count', 'longest_lock_ms', 'stale'];
const ID = ['<change>', 'ID of the change'] as const;
const WATCH = ['--watch', 'wait for the end, and report it'] as const;

interface Watch {
  watch?: true;
}

async function changeIn(command: Command, change_id: string) {
  const session = openSession(command);
  const params = { path: { project_id: await projectOf(command, session), change_id } };
  return { session, params };
}

const sourceOf = ({ source }: Pick<Change, 'source'>) => source?.branch_name ?? 'sql';

/** For people: the statements with what the rehearsal found, and the approvals. */
function print(command: Command, change: Change): void {
  const { statements, rehearsal, approvals, application } = change;
  const record = { ...change, source: isJson(command) ? change.source : sourceOf(change) };
  printSections(command, record, COLUMNS, [
    {
      title: 'Statements',
      columns: ['position', 'duration_ms', 'lock', 'applied', 'sql'],
      records: statements.map(({ rehearsed, ...statement }) => ({
        ...statement,
        duration_ms: rehearsed && Math.ceil(rehearsed.duration_ms),
        lock: rehearsed?.locks[0]?.mode ?? null,
      })),
    },
    { title: 'Approvals', columns: ['email', 'counts', 'approved_at'], records: approvals },
  ]);
  if (isJson(command)) return;
  if (change.base === 'gone') printLines(['It is not known what main was like when the branch was made.']);
  printLines(
    change.main_changes.map(({ kind, identity, change: what }) => `main: ${kind} ${identity} ${what} since`),
  );
  for (const { position, findings } of statements)
    printLines(findings.map(({ message, instead }) => `${position}: ${message} Safer: ${instead}.`));
  if (rehearsal) {
    printLines([
      `Rehearsal: ${rehearsal.error ? 'failed' : rehearsal.verdict}`,
      ...rehearsal.dangers.map(({ kind, schema, name }) => `  ${kind}: ${schema}.${name}`),
      ...rehearsal.forecast.map((forecast) => `  ${forecastText(forecast)}`),
      ...errorLines(rehearsal.error),
    ]);
  }
  if (application?.reason) printLines([`Stopped: ${application.reason}`, ...errorLines(application.error)]);
}

const errorLines = (error: { statement: number; sqlstate: string | null; message: string | null } | null) =>
  error
    ? [`  statement ${error.statement}: ${error.message ?? 'see PostgreSQL'} (${error.sqlstate ?? ''})`]
    : [];

/** The change once its job has ended, if the command is to wait for that. */
const settled = ({ client }: Session, change: Change, { watch }: Watch, title: string): Promise<Change> =>
  watch
    ? withProgress(title, (onProgress) => endOfChange(client, change, { onProgress }))
    : Promise.resolve(change);

const create = () =>
  new Command('create')
    .description('Plan a change of main: from a branch, or from the statements of a migration')
    .option('--from <branch>', 'name or ID of the branch whose schema main is to have')
    .option('-f, --file <file>', 'a file with the statements, `-` for standard input')
    .action(async ({ from, file }: { from?: string; file?: string }, command: Command) => {
      if (from === undefined && file === undefined)
        throw new CommandError('usage', 'Give --from with a branch, or -f with a file of statements.');
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const sql = file === undefined ? undefined : await readText(file, 'the statements');
      const body = { ...(from !== undefined && { from }), ...(sql !== undefined && { sql }) };
      print(command, await dataOf(session.client.api.POST(CHANGES, { params: { path }, body })));
    });

const list = () =>
  new Command('list')
    .description('List the changes of main, newest first')
    .option('--limit <n>', 'number of changes', readCount, 50)
    .action(async ({ limit }: { limit: number }, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const found = await take(session.client.all(CHANGES, { params: { path } }), limit);
      const records = isJson(command)
        ? found
        : found.map((change) => ({ ...change, source: sourceOf(change) }));
      printRecords(command, records, COLUMNS);
    });

const get = () =>
  new Command('get')
    .description('Show a change: its statements, rehearsal, approvals, and how far it is')
    .argument(...ID)
    .action(async (id: string, _options: object, command: Command) => {
      const { session, params } = await changeIn(command, id);
      print(command, await dataOf(session.client.api.GET(CHANGE, { params })));
    });

const rehearse = () =>
  new Command('rehearse')
    .description('Run a change on a clone of main, which is dropped afterwards')
    .argument(...ID)
    .option(...WATCH)
    .action(async (id: string, options: Watch, command: Command) => {
      const { session, params } = await changeIn(command, id);
      const begun = await dataOf(session.client.api.POST(`${CHANGE}/rehearse`, { params }));
      const change = await settled(session, begun, options, 'Rehearsing');
      print(command, change);
      if (!options.watch) return;
      if (change.rehearsal?.error)
        throw new CommandError('failed', `Statement ${change.rehearsal.error.statement} failed.`);
      if (change.rehearsal?.verdict === 'danger') exitWith(EXIT_CODES.danger.code);
    });

const approve = () =>
  new Command('approve')
    .description('Approve the present plan of a change of somebody else')
    .argument(...ID)
    .action(async (id: string, _options: object, command: Command) => {
      const { session, params } = await changeIn(command, id);
      print(command, await dataOf(session.client.api.POST(`${CHANGE}/approve`, { params })));
    });

interface ApplyOptions extends Watch {
  lockTimeoutMs?: number;
  attempts?: number;
  budgetMs?: number;
  at?: string;
  acceptOutage?: true;
}

const apply = () =>
  new Command('apply')
    .description('Apply a change to main, with short lock timeouts and retries')
    .argument(...ID)
    .option('--lock-timeout-ms <n>', 'how long a statement waits for a lock (default: 500)', readCount)
    .option('--attempts <n>', 'how often a statement is tried (default: 20)', readCount)
    .option('--budget-ms <n>', 'longest time of a statement with a strong lock (default: 2000)', readCount)
    .option('--at <time>', 'when, as ISO 8601, within 30 days (default: now)')
    .option('--accept-outage', 'without the limit of --budget-ms')
    .option(...WATCH)
    .addHelpText(
      'after',
      `
A safety snapshot of main is taken first, to which \`change undo\` goes back. A change that has stopped continues with the
statement at which it stopped.`,
    )
    .action(async (id: string, options: ApplyOptions, command: Command) => {
      const { session, params } = await changeIn(command, id);
      const { statement_count: count } = await dataOf(session.client.api.GET(CHANGE, { params }));
      await confirm(`Run ${count} statements in main?`, optionsOf(command));
      const { lockTimeoutMs, attempts, budgetMs, at, acceptOutage } = options;
      const body = {
        confirm: 'main' as const,
        ...(lockTimeoutMs !== undefined && { lock_timeout_ms: lockTimeoutMs }),
        ...(attempts !== undefined && { attempts }),
        ...(budgetMs !== undefined && { budget_ms: budgetMs }),
        ...(at !== undefined && { at }),
        ...(acceptOutage && { accept_outage: true }),
      };
      const begun = await dataOf(session.client.api.POST(`${CHANGE}/apply`, { params, body }));
      if (begun.state === 'scheduled')
        say(`It is applied at ${begun.application?.at}. \`change delete\` calls it off.`);
      const change = begun.state === 'scheduled' ? begun : await settled(session, begun, options, 'Applying');
      print(command, change);
      if (!options.watch || begun.state === 'scheduled' || change.state === 'applied') return;
      const how = change.state === 'failed' ? 'failed' : 'conflict';
      throw new CommandError(how, `The change is ${change.state}: see \`branchgate change get ${id}\`.`);
    });

const undo = () =>
  new Command('undo')
    .description('Take main back to what it held before a change, after showing what would be lost')
    .argument(...ID)
    .option(...WATCH)
    .action(async (id: string, options: Watch, command: Command) => {
      const { session, params } = await changeIn(command, id);
      const { safety_snapshot_id: against } = await dataOf(session.client.api.GET(CHANGE, { params }));
      if (against === null)
        throw new CommandError(
          'conflict',
          'The safety snapshot of the change is gone, so it cannot be undone.',
        );
      await showLoss(session, params.path.project_id, against);
      await confirm('Take main back? Everything that was written since is lost.', optionsOf(command));
      const body = { confirm: 'main' as const };
      const begun = await dataOf(session.client.api.POST(`${CHANGE}/undo`, { params, body }));
      print(command, await settled(session, begun, options, 'Taking main back'));
    });

/** Counts the rows of `main` that differ from the snapshot. */
async function showLoss({ client }: Session, project_id: string, against: string): Promise<void> {
  const params = { path: { project_id, branch_ref: 'main' }, query: { against } };
  const found = await dataOf(client.api.GET(DIFF, { params }));
  if (!('rows' in found))
    return say('Counting the rows that differ takes longer: see `branchgate branch diff main`.');
  const tables = found.rows?.tables ?? [];
  if (tables.length === 0) say('No row has changed since.');
  for (const { schema, name, inserted, updated, deleted } of tables)
    say(`${schema}.${name}: ${inserted} inserted, ${updated} updated, ${deleted} deleted since.`);
}

const remove = () =>
  new Command('delete')
    .description('Close a change that is not to be applied')
    .argument(...ID)
    .action(async (id: string, _options: object, command: Command) => {
      const { session, params } = await changeIn(command, id);
      printRecord(command, await dataOf(session.client.api.DELETE(CHANGE, { params })), ['id', 'state']);
    });

export const changeCommand = (): Command =>
  [create(), list(), get(), rehearse(), approve(), apply(), undo(), remove()].reduce(
    (group, command) => group.addCommand(command),
    new Command('change').description(
      'Changes of the schema of main: planned, rehearsed, applied and undone',
    ),
  );
