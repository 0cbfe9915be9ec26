import { Command } from 'commander';
import { readBlockedAddresses } from '../attempts/blocked-addresses.ts';
import { readBlockedBranches } from '../attempts/blocked-branches.ts';
import { performOperation } from '../operations/handlers.ts';
import { print, table } from './output.ts';
import { withHost } from './with-host.ts';

export const listCommand = () =>
  new Command('list')
    .description('List the branches on this host')
    .action(async (_options, command: Command) => {
      const { branches, blocked, addresses } = await withHost(async (host) => {
        const { branches } = await performOperation(host, 'host.inventory', {});
        return {
          branches,
          blocked: await readBlockedBranches(host.postgres),
          addresses: await readBlockedAddresses(host.postgres),
        };
      });
      const rows = branches.map(({ database, state, branch_id, project_id }) => [
        database,
        state,
        branch_id,
        project_id,
      ]);
      print(command, { branches, blocked, blocked_addresses: addresses }, [
        ...table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]),
        ...blocked.map(({ database, until }) => `${database} is blocked until ${until.toISOString()}`),
        ...addresses.map(
          ({ database, address, until }) =>
            `${database} is blocked for ${address ?? 'all addresses'} until ${until.toISOString()}: too many connection attempts`,
        ),
      ]);
    });
