import { Command } from 'commander';
import type { BlockReason } from '../../shared/block.ts';
import { readBlockedBranches } from '../guard/blocked-branches.ts';
import { performOperation } from '../operations/handlers.ts';
import { print, table } from './output.ts';
import { withHost } from './with-host.ts';

const TOO_MANY: Record<BlockReason, string> = {
  attempts: 'too many connection attempts',
  connections: 'too many connections',
  disk: 'it fills the disk',
  locks: 'too many locks',
  transaction_ids: 'too many transactions',
};

export const listCommand = () =>
  new Command('list')
    .description('List the branches on this host')
    .action(async (_options, command: Command) => {
      const { branches, blocked } = await withHost(async (host) => {
        const { branches } = await performOperation(host, 'host.inventory', {});
        return { branches, blocked: await readBlockedBranches(host.postgres) };
      });
      const rows = branches.map(({ database, state, branch_id, project_id }) => [
        database,
        state,
        branch_id,
        project_id,
      ]);
      print(command, { branches, blocked }, [
        ...table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]),
        ...blocked.map(
          ({ database, reason, until }) =>
            `${database} is blocked until ${until.toISOString()}: ${TOO_MANY[reason]}`,
        ),
      ]);
    });
