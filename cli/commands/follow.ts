import { Command } from 'commander';
import type { BranchgateClient, Schemas } from '../../client/client.ts';
import { dataOf, ResponseError } from '../../client/response-error.ts';
import { sleep } from '../../client/sleep.ts';
import { bytes } from '../../shared/format.ts';
import { stopSignal } from '../child-command.ts';
import { CommandError } from '../exit-codes.ts';
import { isJson, printLine, printLines, printRecord, printRecords, printSections, say } from '../output.ts';
import { openSession, projectOf } from '../session.ts';
import { type SourceOptions, sourceFields, withSourceOptions } from '../source-options.ts';
import { confirm, withProgress } from '../terminal.ts';
import { listingFindings, printFindings, readHiddenUrl, unlessCancelled } from './import.ts';

const PATH = '/api/v1/projects/{project_id}/follow';
type Follow = Schemas['Follow'];
type Job = Schemas['Job'];

const HOW_TO_SEE = 'branchgate follow status --watch shows it, branchgate follow stop ends it';

interface FollowOptions extends SourceOptions {
  probe?: boolean;
  from?: string;
  publication?: string;
}

export const followCommand = () =>
  withSourceOptions(
    new Command('follow')
      .description('Make main follow a PostgreSQL database elsewhere')
      .option('--from <source>', 'where the URL of the source is read: `@file`, or `-` for standard input')
      .option('--probe', 'only check the source; nothing is changed there or here'),
  )
    .option('--publication <name>', 'a publication that exists at the source')
    .addHelpText(
      'after',
      `
The database host connects to the source, so its address has to be public. It copies the source into an empty main, and then
applies each change. Meanwhile main can only be read, and branches of it are ordinary ones. Ctrl-C leaves it running.
No record, log or reply shows the password. Everything that is wrong is listed, with the statement that mends it.`,
    )
    .action(start)
    .addCommand(
      new Command('status')
        .description('Show what main follows, and how far it is behind')
        .option('--watch', 'print each change of the lag, until interrupted')
        .action(showStatus),
    )
    .addCommand(
      new Command('resume')
        .description('Continue to follow after a problem was mended')
        .option('--apply-changes', "apply every change of the source's schema to main")
        .action(resume),
    )
    .addCommand(
      new Command('cutover')
        .description('Make main take over: writes at the source are refused from then on')
        .option('--writes-stopped', 'you have stopped everything that writes to the source')
        .option('--call-off', 'call off the cut-over that is under way')
        .addHelpText(
          'after',
          `
The host makes the database of the source read-only and ends its sessions, applies the last change, sets the sequences, compares
the rows of both sides, and opens main. If they differ, or it fails, the source accepts writes again, and main follows it.`,
        )
        .action(cutOver),
    )
    .addCommand(
      new Command('stop')
        .description('Stop following: main keeps the data that it has, and can be written')
        .action(stop),
    );

const yesOf = (command: Command) => command.optsWithGlobals<{ yes?: boolean }>();

async function inSession(command: Command) {
  const session = openSession(command);
  const params = { path: { project_id: await projectOf(command, session) } };
  return { client: session.client, params };
}

async function start(options: FollowOptions, command: Command): Promise<void> {
  const { probe: onlyProbe, from, publication } = options;
  if (from === undefined)
    throw new CommandError('usage', 'Give --from with the URL of the source, or a command such as status.');
  const source_url = await readHiddenUrl(from);
  const { client, params } = await inSession(command);
  const body = { source_url, ...sourceFields(options), ...(publication && { publication }) };
  const checked = dataOf(client.api.POST(`${PATH}/probe`, { params, body }));
  const probe = await withProgress('Checking the source', () => listingFindings(command, checked));
  if (onlyProbe) return reportProbe(command, probe);
  const { source, tables: found, has_more, warnings } = probe;
  if (!isJson(command)) printFindings(warnings);
  const count = has_more ? `more than ${found.length}` : found.length;
  await confirm(
    `Copy ${count} tables (${bytes(source.total_bytes)}) of ${source.database} at ${source.host} into main?`,
    yesOf(command),
  );
  await confirm(
    'main can only be read from then on, and a slot keeps WAL at the source until the cut-over or the end. Begin?',
    yesOf(command),
  );
  const started = dataOf(client.api.POST(PATH, { params, body }));
  const job = await listingFindings(command, started);
  say(`Job ${job.id}. Ctrl-C leaves it running: ${HOW_TO_SEE}.`);
  const done = await waitFor(client, job, 'Copying');
  warn(
    done,
    warnings.map((warning) => warning.message),
  );
  say(`main follows ${source.database} at ${source.host}: ${HOW_TO_SEE}.`);
  print(command, await dataOf(client.api.GET(PATH, { params })));
}

const waitFor = (client: BranchgateClient, { id }: Job, message: string): Promise<Job> =>
  withProgress(message, (onProgress) => client.waitForJob(id, { onProgress }));

const COLUMNS = ['state', 'lag_seconds', 'lag_bytes', 'slot_bytes'] as const;

function print(command: Command, follow: Follow): void {
  if (isJson(command)) {
    printRecord(command, follow);
    return;
  }
  const { host, port, database, version } = follow.source;
  const columns = ['state', 'source', ...COLUMNS.slice(1)];
  const record = { ...follow, source: `${database} at ${host}:${port}, PostgreSQL ${version}` };
  const shown = ['schema', 'table', 'state', 'rows', 'percent'];
  printSections(command, record, columns, [{ title: 'Tables', records: follow.tables, columns: shown }]);
  printProblem(follow);
}

function printProblem({ problem }: Follow): void {
  if (!problem) return;
  const { code, message, table, statement } = problem;
  printLines([
    `problem: ${[table, message].filter(Boolean).join(': ')} (${code})`,
    ...(statement === null ? [] : [`  ${statement}`]),
  ]);
}

const WATCH_EVERY_MS = 2_000;

/** As `import --status` says it. @throws CommandError if the project follows nothing */
function explainNothing(error: unknown): never {
  const isNothing = error instanceof ResponseError && error.fields.resource === 'follow';
  throw isNothing
    ? new CommandError('notFound', 'main follows nothing. Begin with `branchgate follow --from @file`.')
    : error;
}

async function showStatus({ watch }: { watch?: boolean }, command: Command): Promise<void> {
  const { client, params } = await inSession(command);
  const read = () => dataOf(client.api.GET(PATH, { params })).catch(explainNothing);
  if (!watch) return print(command, await read());
  const signal = stopSignal();
  let last = '';
  while (!signal.aborted) {
    const follow = await read();
    const line = JSON.stringify(follow);
    if (line !== last) {
      printLine(command, follow, COLUMNS);
      if (!isJson(command)) printProblem(follow);
    }
    last = line;
    if (follow.state === 'cut_over' || follow.state === 'failed') return;
    // The end of a watch is no failure.
    await sleep(WATCH_EVERY_MS, signal).catch(() => {});
  }
}

async function resume(
  { applyChanges: apply_changes = false }: { applyChanges?: boolean },
  command: Command,
): Promise<void> {
  const { client, params } = await inSession(command);
  if (apply_changes) await confirm('Change the schema of main as that of the source?', yesOf(command));
  const resumed = dataOf(client.api.POST(`${PATH}/resume`, { params, body: { apply_changes } }));
  const follow = await withProgress('Comparing the schemas', () => resumed);
  print(command, follow);
  if (follow.state === 'stopped')
    throw new CommandError('conflict', 'Replication is still stopped. See `problem`.');
}

interface CutoverOptions {
  writesStopped?: boolean;
  callOff?: boolean;
}

async function cutOver({ writesStopped: writes_stopped = false, callOff }: CutoverOptions, command: Command) {
  const { client, params } = await inSession(command);
  if (callOff) {
    const job = await dataOf(client.api.DELETE(`${PATH}/cutover`, { params }));
    const isOver = await unlessCancelled(waitFor(client, job, 'Calling off'));
    say(isOver ? 'The cut-over had ended already: main is open.' : 'Called off. main follows as before.');
    print(command, await dataOf(client.api.GET(PATH, { params })));
    return;
  }
  const { source, lag_bytes } = await dataOf(client.api.GET(PATH, { params }));
  const behind = lag_bytes === null ? '' : ` main is ${bytes(lag_bytes)} behind.`;
  await confirm(
    `Refuse writes to ${source.database} at ${source.host}, and open main?${behind}`,
    yesOf(command),
  );
  const job = await dataOf(client.api.POST(`${PATH}/cutover`, { params, body: { writes_stopped } }));
  say(`Job ${job.id}. branchgate follow cutover --call-off calls it off.`);
  warn(await waitFor(client, job, 'Cutting over'));
  say('main is open, and the source accepts no writes any more.');
  print(command, await dataOf(client.api.GET(PATH, { params })));
}

/** @param known warnings that have been printed before */
const warn = ({ steps }: Job, known: readonly string[] = []) => {
  for (const { warnings = [] } of steps)
    for (const warning of warnings) if (!known.includes(warning)) say(warning);
};

async function stop(_: object, command: Command): Promise<void> {
  const { client, params } = await inSession(command);
  const { state, source } = await dataOf(client.api.GET(PATH, { params }));
  const what = state === 'copying' ? 'remove what was copied' : 'open main with the data that it has';
  await confirm(`Stop following ${source.database} at ${source.host}, and ${what}?`, yesOf(command));
  const job = await dataOf(client.api.DELETE(PATH, { params }));
  const done = await unlessCancelled(waitFor(client, job, 'Stopping'));
  if (done) warn(done);
  say(done ? 'Stopped. main is open.' : 'Cancelled. main is open and empty.');
  const ended = { params: { path: { job_id: job.id } } };
  if (isJson(command)) printRecord(command, await dataOf(client.api.GET('/api/v1/jobs/{job_id}', ended)));
}

function reportProbe(command: Command, probe: Schemas['FollowProbe']): void {
  if (isJson(command)) {
    printRecord(command, probe);
    return;
  }
  const { source, tables, has_more, warnings } = probe;
  printRecords(command, tables, ['schema', 'table', 'rows', 'bytes', 'follows']);
  if (has_more) say('There are more tables than are listed.');
  printFindings(warnings);
  say(
    `PostgreSQL ${source.version} at ${source.host} can be followed: ${bytes(source.total_bytes)} with indexes.`,
  );
}
