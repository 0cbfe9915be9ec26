import { Command } from 'commander';
import { runOperation } from '../operations/handlers.ts';
import { print, table } from './output.ts';
import { withHost } from './with-host.ts';

export const listCommand = () =>
  new Command('list')
    .description('Branches that this host holds')
    .action(async (_options, command: Command) => {
      const { branches } = await withHost((host) => runOperation(host, 'host.inventory', {}));
      const rows = branches.map(({ database, state, branch_id, project_id }) => [
        database,
        state,
        branch_id,
        project_id,
      ]);
      print(command, { branches }, table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]));
    });
