import { Command, InvalidArgumentError, Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { collect, readCount, readDuration } from '../duration.ts';
import { CommandError } from '../exit-codes.ts';
import { printRecord, printRecords } from '../output.ts';
import { branchPath, findBranch, openSession, projectOf, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { branchDiff } from './branch-diff.ts';
import { TIMEOUT, waitOf } from './project.ts';

const COLUMNS = ['branch_name', 'status', 'lifespan', 'expires_at', 'lease_ends_at', 'created_at', 'id'];
const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

const STATUSES = ['creating', 'active', 'expired', 'deleting', 'failed'] as const;

function readLabel(text: string, previous: Record<string, string> | undefined): Record<string, string> {
  const [, key, value] = /^([^=]+)=(.*)$/.exec(text) ?? [];
  if (key === undefined || value === undefined) throw new InvalidArgumentError('Give a label as key=value.');
  return { ...previous, [key]: value };
}

interface NewBranch {
  from?: string;
  ttl?: number;
  lease?: number;
  ifExists?: 'fail' | 'return';
  allow?: string[];
  label?: Record<string, string>;
  count?: number;
  timeout?: number;
}

const create = () =>
  new Command('create')
    .description('Create a branch, or several of the same content')
    .argument('<name>', 'name of the branch; with --count, the beginning of the names')
    .option('--from <branch>', 'source, by name or ID (default: main)')
    .option('--ttl <duration>', 'time until the branch expires, for instance 2h', readDuration)
    .option(
      '--lease <duration>',
      'delete the branch unless its lease is renewed within this time',
      readDuration,
    )
    .addOption(new Option('--if-exists <choice>', 'if the name exists').choices(['fail', 'return']))
    .option('--allow <network>', 'a network that may connect, or `me`; can be repeated', collect)
    .option('--label <key=value>', 'a label; can be repeated', readLabel)
    .option('--count <n>', 'number of branches', readCount)
    .option(...TIMEOUT)
    .action(async (name: string, options: NewBranch, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const choices = await choicesOf(session, project_id, options);
      const init = { params: { path: { project_id } } };
      const wait = waitOf(options);
      const { client } = session;
      if (options.count === undefined) {
        const body = {
          branch_name: name,
          ...choices,
          ...(options.ifExists && { on_exists: options.ifExists }),
        };
        const made = await withProgress(`Creating ${name}`, () =>
          client.create(BRANCHES, { ...init, body }, wait),
        );
        return printRecord(command, made, [
          'branch_name',
          'status',
          'expires_at',
          'lease_ends_at',
          'created',
          'id',
        ]);
      }
      if (options.ifExists === 'return')
        throw new CommandError('usage', '--if-exists return and --count exclude each other.');
      const body = { count: options.count, name_prefix: name, ...choices };
      const made = await withProgress(`Creating ${options.count} branches`, () =>
        client.create(`${BRANCHES}/batch`, { ...init, body }, wait),
      );
      printRecords(command, made.branches, ['branch_name', 'status', 'expires_at', 'lease_ends_at', 'id']);
    });

async function choicesOf(session: Session, projectId: string, { from, ttl, lease, allow, label }: NewBranch) {
  const source = from === undefined ? null : await findBranch(session, projectId, from);
  return {
    ...(source && { source_branch_id: source.id }),
    ...(ttl !== undefined && { ttl_seconds: ttl }),
    ...(lease !== undefined && { lease_seconds: lease }),
    ...(allow && { allow }),
    ...(label && { labels: label }),
  };
}

interface ListOptions {
  label?: Record<string, string>;
  status?: (typeof STATUSES)[number];
}

const list = () =>
  new Command('list')
    .description('List branches')
    .option('--label <key=value>', 'only branches with this label', readLabel)
    .addOption(new Option('--status <status>', 'only branches with this status').choices(STATUSES))
    .action(async ({ label, status }: ListOptions, command: Command) => {
      const session = openSession(command);
      const [filter] = Object.entries(label ?? {});
      const query = { ...(filter && { label: filter.join('=') }), ...(status && { status }) };
      const path = { project_id: await projectOf(command, session) };
      const { branches } = await dataOf(session.client.api.GET(BRANCHES, { params: { path, query } }));
      printRecords(command, branches, COLUMNS);
    });

const get = () =>
  new Command('get')
    .description('Show a branch')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .action(async (branch: string | undefined, _options, command: Command) => {
      const session = openSession(command);
      const { project_id, branch_ref } = await branchPath(command, session, branch);
      printRecord(command, await findBranch(session, project_id, branch_ref));
    });

const remove = () =>
  new Command('delete')
    .description('Delete branches')
    .argument('<branches...>', 'names or IDs')
    .action(async (branches: string[], _options, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const deleted = [];
      for (const branch_ref of branches)
        deleted.push(
          await dataOf(session.client.api.DELETE(BRANCH, { params: { path: { project_id, branch_ref } } })),
        );
      printRecords(command, deleted, ['id', 'status', 'job_id']);
    });

const extend = () =>
  new Command('extend')
    .description('Give a branch a new life, from now on; an expired branch becomes active again')
    .argument('[branch]', 'name or ID (default: the pinned branch)')
    .option('--ttl <duration>', 'time until the branch expires, for instance 2h', readDuration)
    .option('--lifespan <lifespan>', '7d, 1m, 6m, 1y or forever')
    .action(
      async (branch: string | undefined, options: { ttl?: number; lifespan?: string }, command: Command) => {
        const session = openSession(command);
        const path = await branchPath(command, session, branch);
        const body = {
          ...(options.ttl !== undefined && { ttl_seconds: options.ttl }),
          ...(options.lifespan !== undefined && { lifespan: options.lifespan }),
        };
        printRecord(
          command,
          await dataOf(session.client.api.PATCH(BRANCH, { params: { path }, body })),
          COLUMNS,
        );
      },
    );

export const branchCommand = (): Command =>
  [list(), create(), get(), extend(), branchDiff(), remove()].reduce(
    (group, command) => group.addCommand(command),
    new Command('branch').description('Branches of a project'),
  );
