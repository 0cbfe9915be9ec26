import { Command, InvalidArgumentError, Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { DATABASE_SETTINGS, type DatabaseSettingsChange } from '../../shared/branch/database-settings.ts';
import { CommandError } from '../exit-codes.ts';
import { pinBranch, pinnedBranch } from '../link.ts';
import { readAttempts, readDuration } from '../option-values.ts';
import { printRecord, printRecords, say } from '../output.ts';
import { branchPath, findBranch, openSession, projectOf } from '../session.ts';
import { confirm, withProgress } from '../terminal.ts';
import { createCommand, readLabel } from './branch-create.ts';
import { branchDiff } from './branch-diff.ts';
import { historyCommands } from './branch-history.ts';

const COLUMNS = ['branch_name', 'status', 'lifespan', 'expires_at', 'lease_ends_at', 'created_at', 'id'];
const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

const STATUSES = ['creating', 'active', 'expired', 'deleting', 'deleted', 'failed'] as const;

/** The gateway filters by one label. */
function readFilter(text: string, previous: Record<string, string> | undefined): Record<string, string> {
  if (previous !== undefined) throw new CommandError('usage', 'Give --label once.');
  return readLabel(text, undefined);
}

interface ListOptions {
  label?: Record<string, string>;
  status?: (typeof STATUSES)[number];
}

const list = () =>
  new Command('list')
    .description('List branches')
    .option('--label <key=value>', 'only branches with this label', readFilter)
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
    .description('Delete branches, which can be restored for some time; those with a lease cannot')
    .argument('<branches...>', 'names or IDs')
    .option('--purge', 'drop their databases immediately; they cannot be restored')
    .action(async (branches: string[], options: { purge?: boolean }, command: Command) => {
      const session = openSession(command);
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      if (options.purge)
        await confirm(`Delete ${branches.join(', ')} for good, so that nothing can be restored?`, { yes });
      const query = options.purge ? { purge: 'true' as const } : {};
      const project_id = await projectOf(command, session);
      const deleted = [];
      for (const branch_ref of branches) {
        const params = { path: { project_id, branch_ref }, query };
        const found = await dataOf(session.client.api.DELETE(BRANCH, { params }));
        if (found.restorable_until === null) say(`${branch_ref} is deleted for good: it cannot be restored.`);
        deleted.push(found);
      }
      printRecords(command, deleted, ['id', 'status', 'restorable_until', 'job_id']);
    });

const extend = () =>
  new Command('extend')
    .description('Give a branch a new life, from now on; an expired branch becomes active again')
    .argument('[branch]', 'name or ID (default: the pinned branch)')
    .option('--ttl <duration>', 'time until the branch expires, for instance 2h', readDuration)
    .option('--lifespan <lifespan>', '7d, 1m, 6m, 1y or forever')
    .action(
      async (branch: string | undefined, options: { ttl?: number; lifespan?: string }, command: Command) => {
        if (options.ttl === undefined && options.lifespan === undefined)
          throw new CommandError('usage', 'Give the new life with --ttl or --lifespan.');
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

const OF_PROJECT = 'project';

/** What an option gives is never undefined. */
type SettingOptions = {
  [Name in keyof DatabaseSettingsChange]?: Exclude<DatabaseSettingsChange[Name], undefined>;
};

interface BranchUpdate {
  connectionAttempts?: number | 'max' | typeof OF_PROJECT;
  setting?: SettingOptions;
}

/** Parses `name=value`; an empty value ends the setting. */
function readSetting(text: string, previous: SettingOptions | undefined): SettingOptions {
  const [, name = '', value = ''] = /^([^=]+)=(.*)$/.exec(text) ?? [];
  if (!DATABASE_SETTINGS.some((known) => known === name))
    throw new InvalidArgumentError(`Give name=value. Settings are ${DATABASE_SETTINGS.join(', ')}.`);
  return { ...previous, [name]: value || null } as SettingOptions;
}

const update = () =>
  new Command('update')
    .description('Change the connection limit or settings of PostgreSQL of a branch')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .option(
      '--connection-attempts <n>',
      'a number, `max`, or `project` for the limit of the project',
      (text) => (text === OF_PROJECT ? OF_PROJECT : readAttempts(text)),
    )
    .option(
      '--setting <name=value>',
      `a setting of new sessions, without a value to end it; can be repeated: ${DATABASE_SETTINGS.join(', ')}`,
      readSetting,
    )
    .action(
      async (
        branch: string | undefined,
        { connectionAttempts: wanted, setting: settings }: BranchUpdate,
        command: Command,
      ) => {
        if (wanted === undefined && settings === undefined)
          throw new CommandError(
            'usage',
            'Nothing is to be changed. Give --connection-attempts or --setting.',
          );
        const session = openSession(command);
        const path = await branchPath(command, session, branch);
        const body = {
          ...(wanted !== undefined && {
            connection_attempts_per_minute: wanted === OF_PROJECT ? null : wanted,
          }),
          ...(settings && { settings }),
        };
        printRecord(command, await dataOf(session.client.api.PATCH(BRANCH, { params: { path }, body })), [
          'branch_name',
          'connection_attempts_per_minute',
          'settings',
          'closed_to',
          'id',
        ]);
      },
    );

const rename = () =>
  new Command('rename')
    .description('Rename a branch; its database and connection URLs follow, and all sessions end')
    .argument('<branch>', 'name or ID')
    .argument('<new-name>', 'lowercase letters, digits, hyphens and underscores')
    .action(async (branch: string, name: string, _options, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      // By its ID, so that the command can be repeated.
      const { id, branch_name: former } = await findBranch(session, project_id, branch);
      const params = { path: { project_id, branch_ref: id } };
      const renamed = await withProgress(`Renaming ${former}`, () =>
        dataOf(session.client.api.PATCH(BRANCH, { params, body: { branch_name: name } })),
      );
      if (pinnedBranch() === former) pinBranch(name);
      say(`Connection URLs have changed. Print the new ones with \`branchgate connection-string ${name}\`.`);
      printRecord(command, renamed, ['branch_name', 'database_name', 'status', 'id']);
    });

const renew = () =>
  new Command('renew')
    .description('Renew the lease of a branch, which is deleted when its lease ends')
    .argument('[branch]', 'name or ID (default: the pinned branch)')
    .option('--lease <duration>', 'a new length, for instance 10m (default: as before)', readDuration)
    .action(async (branch: string | undefined, options: { lease?: number }, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const body = options.lease === undefined ? {} : { lease_seconds: options.lease };
      const renewed = session.client.api.POST(`${BRANCH}/lease`, { params: { path }, body });
      printRecord(command, await dataOf(renewed));
    });

export const branchCommand = (): Command =>
  [
    list(),
    createCommand(),
    get(),
    extend(),
    update(),
    rename(),
    renew(),
    branchDiff(),
    ...historyCommands(),
    remove(),
  ].reduce(
    (group, command) => group.addCommand(command),
    new Command('branch').description('Branches of a project'),
  );
