import { Command } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { pinBranch, pinnedBranch, writeLink } from '../link.ts';
import { say } from '../output.ts';
import { findBranch, openSession, projectOf } from '../session.ts';

const link = () =>
  new Command('link')
    .description('Link this folder to a project, in .branchgate.json')
    .argument('[project]', 'name or ID (default: the only project)')
    .action(async (project: string | undefined, _options, command: Command) => {
      const session = openSession(command);
      if (project !== undefined) command.parent?.setOptionValue('project', project);
      const id = await projectOf(command, session);
      const found = await dataOf(
        session.client.api.GET('/api/v1/projects/{project_id}', { params: { path: { project_id: id } } }),
      );
      say(
        `Linked to ${found.name} in ${writeLink({ url: session.url, project: found.id })}. Commit this file.`,
      );
    });

const checkout = () =>
  new Command('checkout')
    .description('Pin a branch in this git worktree, which later commands use')
    .argument('[branch]', 'name of the branch (default: print the pinned one)')
    .option('-c, --create', 'create the branch first')
    .option('--unpin', 'remove the pin')
    .action(
      async (
        branch: string | undefined,
        options: { create?: boolean; unpin?: boolean },
        command: Command,
      ) => {
        if (options.unpin) return pinBranch(null);
        if (branch === undefined) {
          const pinned = pinnedBranch();
          if (pinned === null)
            throw new CommandError('notFound', 'No branch is pinned here: commands use main.');
          process.stdout.write(`${pinned}\n`);
          return;
        }
        const session = openSession(command);
        const project_id = await projectOf(command, session);
        if (options.create) {
          const init = { params: { path: { project_id } }, body: { branch_name: branch } };
          await session.client.create('/api/v1/projects/{project_id}/branches', init);
        } else await findBranch(session, project_id, branch);
        pinBranch(branch);
        say(`Commands in this worktree use the branch ${branch}.`);
      },
    );

export const linkCommands = (): Command[] => [link(), checkout()];
