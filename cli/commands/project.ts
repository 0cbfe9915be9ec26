import { Command, InvalidArgumentError, Option } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { SPARES_WAITS } from '../../shared/branch/spares-wait.ts';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { collect, readAttempts, readCount, readDuration, readSpares } from '../option-values.ts';
import { printRecord, printRecords, say } from '../output.ts';
import { openSession, optionsOf, projectOf, projectsNamed, type Session } from '../session.ts';
import { confirm, isAttended, withProgress } from '../terminal.ts';

const COLUMNS = [
  'name',
  'env',
  'status',
  'branch_count',
  'leased_branch_count',
  'storage_used_bytes',
  'storage_quota_gib',
  'id',
];
const PROJECT = '/api/v1/projects/{project_id}';

function readGib(text: string): number {
  const gib = Number(text);
  if (Number.isFinite(gib) && gib > 0) return gib;
  throw new InvalidArgumentError('Give a number of GiB.');
}

/** Waits longer than the gateway, up to `--timeout`. */
export const waitOf = ({ timeout }: { timeout?: number }) =>
  timeout === undefined ? {} : { signal: AbortSignal.timeout(timeout * 1000) };

export const TIMEOUT = [
  '--timeout <duration>',
  'stop waiting after this time, with exit code 124',
  readDuration,
] as const;

interface NewProject {
  env?: string;
  appKey?: string;
  quota?: number;
  extension?: string[];
  region?: string;
  ifExists?: 'fail' | 'return';
  allowDuplicate?: boolean;
  timeout?: number;
}

const CREATED = ['id', 'name', 'app_key', 'env', 'status'];

/**
 * A name that two projects have makes every command that names it ambiguous.
 * @returns the project to use instead; null to create one
 * @throws CommandError if the person does not want two
 */
async function sameName(
  command: Command,
  session: Session,
  name: string,
  { ifExists, allowDuplicate }: NewProject,
): Promise<Schemas['Project'] | null> {
  if (allowDuplicate) return null;
  const [existing] = await projectsNamed(session, name);
  if (!existing) return null;
  if (ifExists === 'return') return existing;
  const { yes = false } = optionsOf(command);
  if (ifExists === 'fail' || !(yes || isAttended()))
    throw new CommandError(
      'conflict',
      `You have a project named ${name} (${existing.id}). Give --if-exists return to use it, or --allow-duplicate to create another one.`,
    );
  await confirm(`You have a project named ${name} (${existing.id}). Create another one?`, { yes });
  return null;
}

const INTERVALS = ['1h', '6h', '1d'] as const;
const KEPT = 7;
const ROTATIONS = ['all', 'all_but_main'] as const;
const APPROVALS = ['0', '1', '2'] as const;

interface ProjectChange {
  name?: string;
  quota?: number;
  snapshotEvery?: (typeof INTERVALS)[number] | 'never';
  snapshotKeep?: number;
  snapshotMasked?: 'on' | 'off';
  connectionAttempts?: number | 'max';
  maskedOnly?: 'on' | 'off';
  rotateCredentials?: (typeof ROTATIONS)[number];
  spares?: number | 'auto';
  durability?: 'async' | 'sync';
  changeApprovals?: (typeof APPROVALS)[number];
}

/**
 * The schedule after the options; what they leave out stays as it is.
 * @returns undefined if they are not about it
 * @throws CommandError
 */
async function scheduleOf(
  { snapshotEvery: every, snapshotKeep: keep, snapshotMasked }: ProjectChange,
  present: () => Promise<Schemas['ProjectDetails']>,
) {
  if (every === undefined && keep === undefined && snapshotMasked === undefined) return undefined;
  if (every === 'never' && keep === undefined && snapshotMasked === undefined) return null;
  const { snapshot_schedule: schedule } = await present();
  const interval = every ?? schedule?.every ?? 'never';
  if (interval === 'never')
    throw new CommandError(
      'usage',
      'Without a schedule no snapshots are kept. Give --snapshot-every with an interval.',
    );
  const masked = snapshotMasked === undefined ? schedule?.masked : snapshotMasked === 'on';
  return { every: interval, keep: keep ?? schedule?.keep ?? KEPT, ...(masked !== undefined && { masked }) };
}

export function projectCommand(): Command {
  const group = new Command('project').description('Projects, each with its main database');

  group
    .command('list')
    .description('List projects')
    .action(async (_options, command: Command) => {
      const { client } = openSession(command);
      printRecords(command, await take(client.all('/api/v1/projects')), COLUMNS);
    });

  group
    .command('create')
    .description('Create a project and its main database')
    .argument('<name>')
    .option('--env <env>', 'environment, part of the database names (default: prod)')
    .option('--app-key <key>', 'key of the application, part of the database names')
    .option('--quota <gib>', 'storage quota in GiB', readGib)
    .option(
      '--extension <name>',
      'extension of the operator that every database gets, such as postgis; can be repeated',
      collect,
    )
    .option('--region <region>', 'where its databases are to be (default: anywhere; see `project regions`)')
    .addOption(
      new Option(
        '--if-exists <choice>',
        'if you have a project of this name: fail, or print that one',
      ).choices(['fail', 'return']),
    )
    .option('--allow-duplicate', 'create it although another project has the name')
    .option(...TIMEOUT)
    .action(async (name: string, options: NewProject, command: Command) => {
      const { env, appKey, quota, extension, region, timeout } = options;
      const session = openSession(command);
      const { client } = session;
      const existing = await sameName(command, session, name, options);
      if (existing) return printRecord(command, existing, CREATED);
      const body = {
        name,
        ...(env !== undefined && { env }),
        ...(appKey !== undefined && { app_key: appKey }),
        ...(quota !== undefined && { storage_quota_gib: quota }),
        ...(extension !== undefined && { extensions: extension }),
        ...(region !== undefined && { region }),
      };
      const created = await withProgress(`Creating ${name}`, () =>
        client.create('/api/v1/projects', { body }, waitOf({ ...(timeout !== undefined && { timeout }) })),
      );
      if (created.warning !== undefined) say(created.warning);
      printRecord(command, created, CREATED);
    });

  group
    .command('regions')
    .description('List the regions that a new project can name')
    .action(async (_options, command: Command) => {
      const { client } = openSession(command);
      const { regions } = await dataOf(client.api.GET('/api/v1/regions'));
      printRecords(command, regions, ['name', 'accepts_projects']);
    });

  group
    .command('get')
    .description('Show a project')
    .argument('[project]', 'name or ID (default: the linked one)')
    .action(async (project: string | undefined, _options, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session, project) };
      printRecord(command, await dataOf(session.client.api.GET(PROJECT, { params: { path } })));
    });

  group
    .command('update')
    .description(
      'Change the name, the storage quota, the snapshots, their spares, the connection limit, the durability, the data or the approvals of a project',
    )
    .argument('[project]', 'name or ID (default: the linked one)')
    .option('--name <name>', 'new name')
    .option('--quota <gib>', 'storage quota in GiB', readGib)
    .addOption(
      new Option('--snapshot-every <interval>', 'take snapshots of main').choices([...INTERVALS, 'never']),
    )
    .option('--snapshot-keep <n>', 'snapshots that are kept (default: as before, or 7)', readCount)
    .addOption(
      new Option('--snapshot-masked <choice>', 'mask them by the policy of the project').choices([
        'on',
        'off',
      ]),
    )
    .option(
      '--connection-attempts <n>',
      'connections a minute to each branch without a limit of its own, or `max`',
      readAttempts,
    )
    .addOption(
      new Option(
        '--masked-only <choice>',
        'give only owners, admins and API keys with `data.full` unmasked data',
      ).choices(['on', 'off']),
    )
    .addOption(
      new Option(
        '--rotate-credentials <choice>',
        'with --masked-only on: replace the passwords of the branches with unmasked data, and end their sessions',
      ).choices(ROTATIONS),
    )
    .option(
      '--spares <n>',
      'clones of each snapshot in use that are kept ready, up to 32, or `auto`',
      readSpares,
    )
    .addOption(
      new Option(
        '--durability <choice>',
        'sync: commits wait until the standby of the host has them on its disk; ends open sessions',
      ).choices(['async', 'sync']),
    )
    .addOption(
      new Option(
        '--change-approvals <n>',
        'people besides its author who have to approve a change of main',
      ).choices(APPROVALS),
    )
    .action(async (project: string | undefined, options: ProjectChange, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session, project) };
      const { name, quota, connectionAttempts, maskedOnly, rotateCredentials, spares, durability } = options;
      const { changeApprovals } = options;
      if (rotateCredentials !== undefined && maskedOnly !== 'on')
        throw new CommandError('usage', '--rotate-credentials needs --masked-only on.');
      const schedule = await scheduleOf(options, () =>
        dataOf(session.client.api.GET(PROJECT, { params: { path } })),
      );
      const body = {
        ...(name !== undefined && { name }),
        ...(quota !== undefined && { storage_quota_gib: quota }),
        ...(schedule !== undefined && { snapshot_schedule: schedule }),
        ...(connectionAttempts !== undefined && { connection_attempts_per_minute: connectionAttempts }),
        ...(maskedOnly !== undefined && { masked_only: maskedOnly === 'on' }),
        ...(rotateCredentials !== undefined && { rotate_credentials: rotateCredentials }),
        ...(spares !== undefined && { spares }),
        ...(durability !== undefined && { durability }),
        ...(changeApprovals !== undefined && { change_approvals: Number(changeApprovals) }),
      };
      if (Object.keys(body).length === 0)
        throw new CommandError(
          'usage',
          'Nothing is to be changed. Give --name, --quota, --snapshot-every, --snapshot-keep, --snapshot-masked, --connection-attempts, --masked-only, --spares, --durability or --change-approvals.',
        );
      const changed = await dataOf(session.client.api.PATCH(PROJECT, { params: { path }, body }));
      if (changed.warning !== undefined) say(changed.warning);
      if (maskedOnly === 'on' && rotateCredentials === undefined && changed.warning !== undefined)
        say('Repeat the command with --rotate-credentials to replace them.');
      if (changed.credentials_rotated !== undefined)
        say(
          `Branches with new passwords: ${changed.credentials_rotated}. \`branchgate connection-string\` prints them.`,
        );
      const { spares_state: state } = changed;
      if (spares !== undefined && state?.waiting_for)
        say(`${state.ready} of ${state.wanted} spares are ready. ${SPARES_WAITS[state.waiting_for]}`);
      printRecord(command, changed);
    });

  group
    .command('delete')
    .description('Delete a project with all its databases')
    .argument('<project>', 'name or ID')
    .option(...TIMEOUT)
    .action(async (project: string, options: { timeout?: number }, command: Command) => {
      const session = openSession(command);
      const path = { project_id: await projectOf(command, session, project) };
      const { yes = false } = command.optsWithGlobals<{ yes?: boolean }>();
      await confirm(`Delete ${project} and all its databases?`, { yes });
      const job = await dataOf(session.client.api.DELETE(PROJECT, { params: { path } }));
      const ended = await session.client.waitForJob(job.id, waitOf(options));
      const { recoverable_until } = job;
      printRecord(command, { ...ended, recoverable_until }, ['id', 'kind', 'status', 'recoverable_until']);
      say(
        `${project} is deleted.${recoverable_until === null ? '' : ` The copies and the log of its host have its data until ${recoverable_until}, and no request recovers it.`}`,
      );
    });

  return group;
}
