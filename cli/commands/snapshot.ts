import { Command } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { readCount, readDuration, readSpares } from '../option-values.ts';
import { printRecord, printRecords } from '../output.ts';
import { branchPath, openSession, projectOf, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { TIMEOUT, waitOf } from './project.ts';

const PROJECT = '/api/v1/projects/{project_id}';
const OF_BRANCH = `${PROJECT}/branches/{branch_ref}/snapshots` as const;
const COLUMNS = [
  'name',
  'kind',
  'data',
  'branch_id',
  'size_bytes',
  'own_bytes',
  'spares',
  'taken_at',
  'expires_at',
  'id',
];

/** A snapshot by its ID or its name, of which the newest counts. @throws CommandError */
export async function findSnapshot({ client }: Session, projectId: string, reference: string) {
  const snapshots = client.all(`${PROJECT}/snapshots`, { params: { path: { project_id: projectId } } });
  for await (const snapshot of snapshots)
    if (snapshot.id === reference || snapshot.name === reference) return snapshot;
  throw new CommandError(
    'notFound',
    `There is no snapshot named ${reference}. Run \`branchgate snapshot list\`.`,
  );
}

const list = () =>
  new Command('list')
    .description('List snapshots, newest first')
    .option('--branch <branch>', 'only those of this branch')
    .option('--limit <n>', 'number of snapshots', readCount, 50)
    .action(async ({ branch, limit }: { branch?: string; limit: number }, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const snapshots =
        branch === undefined
          ? session.client.all(`${PROJECT}/snapshots`, { params: { path: { project_id } } })
          : session.client.all(OF_BRANCH, { params: { path: { project_id, branch_ref: branch } } });
      printRecords(command, await take(snapshots, limit), COLUMNS);
    });

interface NewSnapshot {
  name?: string;
  ttl?: number;
  masked?: true;
  timeout?: number;
}

const create = () =>
  new Command('create')
    .description('Take a snapshot of a branch as it is now')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .option('--name <name>', 'a name to find it by')
    .option('--ttl <duration>', 'time until it is deleted, for instance 7d', readDuration)
    .option('--masked', 'replace values by the masking policy of the project')
    .option(...TIMEOUT)
    .action(async (branch: string | undefined, options: NewSnapshot, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const body = {
        ...(options.name !== undefined && { name: options.name }),
        ...(options.ttl !== undefined && { ttl_seconds: options.ttl }),
        ...(options.masked && { data: 'masked' as const }),
      };
      const made = await withProgress(`Taking a snapshot of ${path.branch_ref}`, () =>
        session.client.create(OF_BRANCH, { params: { path }, body }, waitOf(options)),
      );
      printRecord(command, made, COLUMNS);
    });

const update = () =>
  new Command('update')
    .description('Change how many clones of a snapshot are kept ready for its next branches')
    .argument('<snapshot>', 'name or ID')
    .requiredOption('--spares <n>', 'clones that are kept ready, up to 32, or `auto`', readSpares)
    .action(async (reference: string, { spares }: { spares: number | 'auto' }, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const { id: snapshot_id } = await findSnapshot(session, project_id, reference);
      const params = { path: { project_id, snapshot_id } };
      const request = { params, body: { spares } };
      const changed = await dataOf(session.client.api.PATCH(`${PROJECT}/snapshots/{snapshot_id}`, request));
      printRecord(command, changed, COLUMNS);
    });

const remove = () =>
  new Command('delete')
    .description('Delete a snapshot; branches that were created from it stay')
    .argument('<snapshot>', 'name or ID')
    .action(async (reference: string, _options, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const { id: snapshot_id } = await findSnapshot(session, project_id, reference);
      const path = { project_id, snapshot_id };
      const deleted = await dataOf(
        session.client.api.DELETE(`${PROJECT}/snapshots/{snapshot_id}`, { params: { path } }),
      );
      printRecord(command, deleted, ['id', 'status', 'job_id']);
    });

export const snapshotCommand = (): Command =>
  [list(), create(), update(), remove()].reduce(
    (group, command) => group.addCommand(command),
    new Command('snapshot').description('Snapshots, from which branches are created or reset'),
  );
