import { Command } from 'commander';
import { take } from '../../shared/take.ts';
import { CommandError } from '../exit-codes.ts';
import { readCount } from '../option-values.ts';
import { printRecord, printRecords, say } from '../output.ts';
import { branchPath, openSession, type Session } from '../session.ts';
import { withProgress } from '../terminal.ts';
import { TIMEOUT, waitOf } from './project.ts';

const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';
const COLUMNS = ['number', 'label', 'taken_at', 'checkpoint_id'];
const ID = /^[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$/i;
const BRANCH_ARGUMENT = ['[branch]', 'name or ID (default: the pinned branch, or main)'] as const;

const create = () =>
  new Command('create')
    .description('Take a checkpoint of a branch as it is now, to which `undo` goes back')
    .argument(...BRANCH_ARGUMENT)
    .option('--label <text>', 'what it is before')
    .option(...TIMEOUT)
    .action(
      async (branch: string | undefined, options: { label?: string; timeout?: number }, command: Command) => {
        const session = openSession(command);
        const path = await branchPath(command, session, branch);
        const body = options.label === undefined ? {} : { label: options.label };
        const made = await withProgress(`Taking a checkpoint of ${path.branch_ref}`, () =>
          session.client.create(`${BRANCH}/checkpoints`, { params: { path }, body }, waitOf(options)),
        );
        printRecord(command, made, COLUMNS);
      },
    );

const list = () =>
  new Command('list')
    .description('List the checkpoints of a branch, newest first')
    .argument(...BRANCH_ARGUMENT)
    .option('--limit <n>', 'number of checkpoints', readCount, 50)
    .action(async (branch: string | undefined, { limit }: { limit: number }, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const checkpoints = session.client.all(`${BRANCH}/checkpoints`, { params: { path } });
      printRecords(command, await take(checkpoints, limit), COLUMNS);
    });

export const checkpointCommand = (): Command =>
  [create(), list()].reduce(
    (group, command) => group.addCommand(command),
    new Command('checkpoint').description('Checkpoints, to which a branch can be taken back'),
  );

/** The newest checkpoint with the label. @throws CommandError */
async function checkpointIdOf(
  { client }: Session,
  path: { project_id: string; branch_ref: string },
  to: string,
): Promise<string> {
  if (ID.test(to)) return to;
  const checkpoints = await take(client.all(`${BRANCH}/checkpoints`, { params: { path } }));
  const found = checkpoints.find(({ label }) => label === to);
  if (!found)
    throw new CommandError(
      'notFound',
      `${path.branch_ref} has no checkpoint with the label ${to}. Run \`branchgate checkpoint list ${path.branch_ref}\`.`,
    );
  return found.checkpoint_id;
}

interface UndoOptions {
  to?: string;
  steps?: number;
  confirm?: string;
  timeout?: number;
}

export const undoCommand = (): Command =>
  new Command('undo')
    .description('Take a branch back to its last checkpoint, or further')
    .argument(...BRANCH_ARGUMENT)
    .option('--to <checkpoint>', 'label or ID of a checkpoint, or the ID of what an undo has left')
    .option('--steps <n>', 'how many checkpoints back (default: 1)', readCount)
    .option('--confirm <branch>', 'the name of the branch again, if it is protected')
    .option(...TIMEOUT)
    .action(async (branch: string | undefined, options: UndoOptions, command: Command) => {
      const { to, steps, confirm } = options;
      if (to !== undefined && steps !== undefined) throw new CommandError('usage', 'Give --to or --steps.');
      const session = openSession(command);
      const path = await branchPath(command, session, branch);
      const target = to === undefined ? undefined : await checkpointIdOf(session, path, to);
      const body = {
        ...(target !== undefined && { to: target }),
        ...(steps !== undefined && { steps }),
        ...(confirm !== undefined && { confirm }),
      };
      const undone = await withProgress(`Taking ${path.branch_ref} back`, () =>
        session.client.create(`${BRANCH}/undo`, { params: { path }, body }, waitOf(options)),
      );
      const { safety_checkpoint_id: left } = undone;
      if (left !== null)
        say(
          `What ${path.branch_ref} held stays for 24 hours: \`branchgate undo ${path.branch_ref} --to ${left}\` brings it back.`,
        );
      printRecord(command, { ...undone.restored, safety_checkpoint_id: left }, [
        ...COLUMNS,
        'safety_checkpoint_id',
      ]);
    });
