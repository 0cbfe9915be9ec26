import { Command } from 'commander';
import { resetPreviewOf } from '../../client/difference.ts';
import { dataOf } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { readDuration, readPastTime } from '../option-values.ts';
import { printRecord, say } from '../output.ts';
import { branchPath, openSession, projectOf, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { printDifference } from './branch-diff.ts';
import { TIMEOUT, waitOf } from './project.ts';
import { findSnapshot } from './snapshot.ts';

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = `${BRANCHES}/{branch_ref}` as const;
const COLUMNS = ['branch_name', 'status', 'protected', 'expires_at', 'deletes_at', 'id'];
const PARENT = 'parent';

interface ResetOptions {
  to: string;
  at?: string;
  preview?: true;
  ttl?: number;
  confirm?: string;
  timeout?: number;
}

const reset = () =>
  new Command('reset')
    .description(
      'Give a branch the content of its parent, of a snapshot or of an earlier time; what it held stays as a snapshot',
    )
    .argument('<branch>', 'name or ID')
    .option('--to <snapshot>', 'a snapshot by name or ID, or `parent`', PARENT)
    .option('--at <time>', 'what the branch itself held then: `10 minutes ago`, or ISO 8601', readPastTime)
    .option('--preview', 'only show which rows a reset to --at would change')
    .option('--ttl <duration>', 'a new life too, for instance 2h', readDuration)
    .option('--confirm <branch>', 'the name of the branch again, if it is protected')
    .option(...TIMEOUT)
    .action(async (branch: string, options: ResetOptions, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const { at } = options;
      if (at !== undefined && options.to !== PARENT)
        throw new CommandError('usage', '--at and --to exclude each other.');
      if (options.preview) {
        if (at === undefined) throw new CommandError('usage', '--preview needs --at.');
        const preview = await withProgress(`Recovering ${branch} as of ${at}`, (onProgress) =>
          resetPreviewOf(session.client, path, { at }, { onProgress }),
        );
        say(
          'A reset loses the inserted rows, brings the deleted ones back, and gives the updated ones their former values.',
        );
        return printDifference(command, preview);
      }
      const to =
        options.to === PARENT ? PARENT : (await findSnapshot(session, path.project_id, options.to)).id;
      const body = {
        ...(at === undefined ? { to } : { to: 'time' as const, at }),
        ...(options.ttl !== undefined && { ttl_seconds: options.ttl }),
        ...(options.confirm !== undefined && { confirm: options.confirm }),
      };
      const found = await withProgress(`Resetting ${branch}`, () =>
        session.client.create(`${BRANCH}/reset`, { params: { path }, body }, waitOf(options)),
      );
      const { safety_snapshot_id: left } = found;
      if (left !== null)
        say(
          `What ${found.branch_name} held is the snapshot ${left} for 24 hours: \`branchgate branch reset ${found.branch_name} --to ${left}\` brings it back.`,
        );
      printRecord(command, found, COLUMNS);
    });

/** The deleted branch to restore: of several of one name, the one that was deleted last. */
async function findDeleted({ client }: Session, projectId: string, reference: string) {
  const params = { path: { project_id: projectId }, query: { status: 'deleted' as const } };
  const { branches } = await dataOf(client.api.GET(BRANCHES, { params }));
  const [found] = branches
    .filter(({ id, branch_name }) => id === reference || branch_name === reference)
    .sort((a, b) => (b.deletes_at ?? '').localeCompare(a.deletes_at ?? ''));
  if (!found)
    throw new CommandError(
      'notFound',
      `No deleted branch ${reference} can be restored. Run \`branchgate branch list --status deleted\`.`,
    );
  return found;
}

const restore = () =>
  new Command('restore')
    .description('Bring a deleted branch back, with its content, passwords and rules')
    .argument('<deleted>', 'its former name, or its ID')
    .option('--name <name>', 'a new name (default: its former name)')
    .option(...TIMEOUT)
    .action(async (reference: string, options: { name?: string; timeout?: number }, command: Command) => {
      const session = openSession(command);
      const project_id = await projectOf(command, session);
      const { id: deleted_branch_id } = await findDeleted(session, project_id, reference);
      const body = options.name === undefined ? {} : { branch_name: options.name };
      const init = { params: { path: { project_id, deleted_branch_id } }, body };
      const found = await withProgress(`Restoring ${reference}`, () =>
        session.client.create(`${BRANCHES}/{deleted_branch_id}/restore`, init, waitOf(options)),
      );
      printRecord(command, found, COLUMNS);
    });

const protection = (name: string, description: string, isProtected: boolean) => () =>
  new Command(name)
    .description(description)
    .argument('<branch>', 'name or ID')
    .action(async (branch: string, _options, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const body = { protected: isProtected };
      printRecord(
        command,
        await dataOf(session.client.api.PATCH(BRANCH, { params: { path }, body })),
        COLUMNS,
      );
    });

const protect = protection(
  'protect',
  'Protect a branch: it is then not deleted, and a reset needs --confirm',
  true,
);
const unprotect = protection('unprotect', 'End the protection of a branch', false);

export const historyCommands = (): Command[] => [reset(), restore(), protect(), unprotect()];
