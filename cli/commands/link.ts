import { Command, Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { CommandError } from '../exit-codes.ts';
import { pinBranch, pinnedBranch, writeLink } from '../link.ts';
import { openBrowser } from '../loopback-sign-in.ts';
import { isJson, printForPrograms, printRecord, printText, say } from '../output.ts';
import { branchPath, findBranch, openSession, projectOf } from '../session.ts';
import { isAttended } from '../terminal.ts';

const link = () =>
  new Command('link')
    .description('Link this folder to a project, in .branchgate.json')
    .argument('[project]', 'name or ID (default: the only project)')
    .action(async (project: string | undefined, _options, command: Command) => {
      const session = openSession(command);
      const id = await projectOf(command, session, project);
      const found = await dataOf(
        session.client.api.GET('/api/v1/projects/{project_id}', { params: { path: { project_id: id } } }),
      );
      const record = { url: session.url, project: found.id };
      say(`Linked to ${found.name} in ${writeLink(record)}. Commit this file.`);
      printForPrograms(command, record);
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
        if (options.unpin) {
          pinBranch(null);
          return printForPrograms(command, { branch: null });
        }
        if (branch === undefined) return printPinned(command);
        const session = openSession(command);
        const project_id = await projectOf(command, session);
        if (options.create) {
          const init = { params: { path: { project_id } }, body: { branch_name: branch } };
          await session.client.create('/api/v1/projects/{project_id}/branches', init);
        } else await findBranch(session, project_id, branch);
        pinBranch(branch);
        say(`Commands in this worktree use the branch ${branch}.`);
        printForPrograms(command, { branch });
      },
    );

function printPinned(command: Command): void {
  const branch = pinnedBranch();
  if (branch === null) throw new CommandError('notFound', 'No branch is pinned here: commands use main.');
  if (isJson(command)) printRecord(command, { branch });
  else printText(`${branch}\n`);
}

const PAGES = ['tables', 'sql', 'connect', 'monitoring', 'difference'] as const;

const open = () =>
  new Command('open')
    .description('Open the console at a branch')
    .argument('[branch]', 'name or ID (default: the pinned branch, or main)')
    .addOption(new Option('--page <page>', 'page of the branch').choices(PAGES).default('tables'))
    .option('--no-browser', 'print the address only')
    .action(
      async (
        given: string | undefined,
        options: { page: (typeof PAGES)[number]; browser: boolean },
        command: Command,
      ) => {
        const session = openSession(command);
        const { project_id, branch_ref } = await branchPath(command, session, given);
        const { branch_name: name } = await findBranch(session, project_id, branch_ref);
        const url = `${session.url}/projects/${project_id}/branches/${encodeURIComponent(name)}/${options.page}`;
        if (options.browser && isAttended()) openBrowser(url);
        if (isJson(command)) printRecord(command, { url });
        else printText(`${url}\n`);
      },
    );

export const linkCommands = (): Command[] => [link(), checkout(), open()];
