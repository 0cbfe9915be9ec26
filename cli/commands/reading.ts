import { Command, Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { ACTOR_TYPES, type ActorType } from '../../shared/actor-types.ts';
import { printableJson } from '../../shared/printable.ts';
import { take } from '../../shared/take.ts';
import { EXIT_CODES } from '../exit-codes.ts';
import { exitWith } from '../exit-status.ts';
import { readCount } from '../option-values.ts';
import { printLine, printRecord, printRecords, printSections, printText } from '../output.ts';
import { branchPath, openSession, projectOf } from '../session.ts';
import { TIMEOUT, waitOf } from './project.ts';

const PROJECT = '/api/v1/projects/{project_id}';
const BRANCH = `${PROJECT}/branches/{branch_ref}` as const;

const USAGE_FIELDS = [
  'storage_used_bytes',
  'storage_limit_bytes',
  'usage_percent',
  'storage_state',
  'observed_at',
  'disk_measured_at',
  'stale',
];
const USAGE_COLUMNS = [
  'branch_name',
  'database_size_bytes',
  'next_branch_bytes',
  'own_bytes',
  'shared_bytes',
  'branch_id',
];
const CHECKPOINT_COLUMNS = [
  'checkpoint_id',
  'branch_id',
  'number',
  'size_bytes',
  'own_bytes',
  'shared_bytes',
];
const SNAPSHOT_COLUMNS = ['snapshot_id', 'branch_id', 'size_bytes', 'own_bytes', 'shared_bytes'];

const usage = () =>
  new Command('usage')
    .description('Show the storage of the project and of each branch')
    .addHelpText(
      'after',
      `
observed_at says from when the sizes are, and disk_measured_at from when own_bytes and shared_bytes are, which hosts measure
seldom. next_branch_bytes is what the next branch of this source counts against the quota.`,
    )
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const found = await dataOf(session.client.api.GET(`${PROJECT}/usage`, { params: { path } }));
      printSections(command, found, USAGE_FIELDS, [
        { title: 'Branches', records: found.branches, columns: USAGE_COLUMNS },
        { title: 'Snapshots', records: found.snapshots, columns: SNAPSHOT_COLUMNS },
        { title: 'Checkpoints', records: found.checkpoints, columns: CHECKPOINT_COLUMNS },
      ]);
    });

const DRILL_COLUMNS = ['drilled_at', 'at', 'passed', 'problem', 'tables', 'rows', 'duration_ms'];

const drills = () =>
  new Command('drills')
    .description('Show whether recoveries to an earlier time were proven')
    .addHelpText(
      'after',
      `
Once a week the host recovers main to a recorded time, compares, and drops what it has recovered. The exit code is 1 if the
last drill has failed, or if none has passed for two weeks.`,
    )
    .action(async (_options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const found = await dataOf(session.client.api.GET(`${PROJECT}/recovery-drills`, { params: { path } }));
      printSections(
        command,
        found,
        ['overdue'],
        [{ title: 'Drills', records: found.drills, columns: DRILL_COLUMNS }],
      );
      if (found.overdue || found.drills[0]?.passed === false) exitWith(EXIT_CODES.failed.code);
    });

const METRIC_COLUMNS = [
  'branch_id',
  'database_size_bytes',
  'active_connections',
  'transactions_committed',
  'cpu_seconds',
];

interface Measured {
  observed_at: string;
  branches: Record<string, unknown>[];
}

const metrics = () =>
  new Command('metrics')
    .description('Show the metrics of a branch')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .option('--watch', 'print each measurement, until interrupted')
    .action(async (branch: string | undefined, options: { watch?: boolean }, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      if (options.watch) {
        const { project_id, branch_ref } = path;
        for await (const { data } of session.client.measurements(project_id, { branch: branch_ref })) {
          const { observed_at, branches } = data as Measured;
          for (const measured of branches)
            printLine(command, { observed_at, ...measured }, ['observed_at', ...METRIC_COLUMNS]);
        }
        return;
      }
      const found = await dataOf(session.client.api.GET(`${BRANCH}/metrics/summary`, { params: { path } }));
      printRecord(command, found);
    });

const JOB_COLUMNS = ['kind', 'status', 'attempts', 'created_at', 'branch_id', 'id'];

function jobCommand(): Command {
  const group = new Command('job').description('Jobs of a project');
  group
    .command('list')
    .description('List jobs, newest first')
    .option('--limit <n>', 'number of jobs', readCount, 50)
    .action(async ({ limit }: { limit: number }, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session) };
      const jobs = session.client.all(`${PROJECT}/jobs`, { params: { path } });
      printRecords(command, await take(jobs, limit), JOB_COLUMNS);
    });
  group
    .command('watch')
    .description('Wait until a job has ended; exit code by its outcome')
    .argument('<id>')
    .option(...TIMEOUT)
    .action(async (id: string, options: { timeout?: number }, command: Command) => {
      const { client } = openSession(command);
      printRecord(command, await client.waitForJob(id, waitOf(options)), JOB_COLUMNS);
    });
  return group;
}

const AUDIT_COLUMNS = ['created_at', 'name', 'actor_type', 'actor_email', 'ip', 'branch_id', 'metadata'];
const AUDIT = '/api/v1/audit-events';

interface AuditOptions {
  name?: string;
  actorType?: ActorType;
  actorId?: string;
}

/** Only events of the project, if it is named: the log belongs to the tenant. */
async function auditQuery(
  command: Command,
  session: ReturnType<typeof openSession>,
  { name, actorType, actorId }: AuditOptions,
) {
  const { project } = command.optsWithGlobals<{ project?: string }>();
  return {
    ...(project !== undefined && { project_id: await projectOf(command, session) }),
    ...(name !== undefined && { name }),
    ...(actorType !== undefined && { actor_type: actorType }),
    ...(actorId !== undefined && { actor_id: actorId }),
  };
}

/** A command with the filters of the log. */
const filteredCommand = (name: string) =>
  new Command(name)
    .option('--name <name>', 'only events of this name')
    .addOption(new Option('--actor-type <type>', 'only events of such actors').choices(ACTOR_TYPES))
    .option('--actor-id <id>', 'only events of this user, API key or trust');

function auditCommand(): Command {
  const list = filteredCommand('list')
    .description('List events, newest first')
    .option('--limit <n>', 'number of events', readCount, 50)
    .action(async (options: AuditOptions & { limit: number }, command: Command) => {
      const session = openSession(command);
      const query = await auditQuery(command, session, options);
      const events = session.client.all(AUDIT, { params: { query } });
      printRecords(command, await take(events, options.limit), AUDIT_COLUMNS);
    });
  const all = filteredCommand('export')
    .description('Print all events as JSON, one a line')
    .action(async (options: AuditOptions, command: Command) => {
      const session = openSession(command);
      const query = await auditQuery(command, session, options);
      const pages = { params: { query: { ...query, limit: 100 } } };
      for await (const event of session.client.all(AUDIT, pages)) printText(`${printableJson(event)}\n`);
    });
  return new Command('audit').description('The audit log of the tenant').addCommand(list).addCommand(all);
}

const events = () =>
  new Command('events')
    .description('Print the changes of the project as they happen, until interrupted')
    .option('--after <id>', 'begin with the events after this one, which `--json` shows')
    .action(async ({ after }: { after?: string }, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const options = after === undefined ? {} : { lastEventId: after };
      for await (const { id, type, data } of session.client.events(project_id, options))
        printLine(command, { id, type, data }, ['type', 'data']);
    });

export const readingCommands = (): Command[] => [
  usage(),
  drills(),
  metrics(),
  jobCommand(),
  auditCommand(),
  events(),
];
