import { Command } from 'commander';
import { type GuardReason, readBlockedAddresses, readBlockedBranches } from '../blocks/stored-blocks.ts';
import { performOperation } from '../operations/handlers.ts';
import { print, table } from './terminal.ts';
import { withHost } from './with-host.ts';

const TOO_MANY: Record<GuardReason, string> = {
  connections: 'too many connections',
  disk: 'it fills the disk',
  locks: 'too many locks',
  transaction_ids: 'too many transactions',
};

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
        ...blocked.map(
          ({ database, reason, until }) =>
            `${database} is blocked until ${until.toISOString()}: ${TOO_MANY[reason]}`,
        ),
        ...addresses.map(
          ({ database, address, until }) =>
            `${database} is blocked for ${address ?? 'all addresses'} until ${until.toISOString()}: too many connection attempts`,
        ),
      ]);
    });
