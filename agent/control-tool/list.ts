import { Command } from 'commander';
import { readBlockedBranches } from '../attempts/blocked-branches.ts';
import { runOperation } from '../operations/handlers.ts';
import { print, table } from './output.ts';
import { withHost } from './with-host.ts';

export const listCommand = () =>
  new Command('list')
    .description('Branches that this host holds')
    .action(async (_options, command: Command) => {
      const { branches, shut } = await withHost(async (host) => {
        const { branches } = await runOperation(host, 'host.inventory', {});
        return { branches, shut: await readBlockedBranches(host.postgres) };
      });
      const rows = branches.map(({ database, state, branch_id, project_id }) => [
        database,
        state,
        branch_id,
        project_id,
      ]);
      print(command, { branches, shut }, [
        ...table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]),
        ...shut.map(
          ({ database, until }) =>
            `${database} is shut until ${until.toISOString()}: too many connection attempts`,
        ),
      ]);
    });
