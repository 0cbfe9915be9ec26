import { Command } from 'commander';
import { readBlocks, type StoredBlock } from '../blocks/stored-blocks.ts';
import { performOperation } from '../operations/handlers.ts';
import { print, table } from './terminal.ts';
import { withHost } from './with-host.ts';

const TOO_MANY: Record<StoredBlock['reason'], string> = {
  attempts: 'too many connection attempts',
  autovacuum: 'its functions held workers of autovacuum',
  connections: 'too many connections',
  disk: 'it fills the disk',
  locks: 'too many locks',
  transaction_ids: 'too many transactions',
};

export const listCommand = () =>
  new Command('list')
    .description('List the branches on this host')
    .action(async (_options, command: Command) => {
      const { branches, blocks } = await withHost(async (host) => {
        const { branches } = await performOperation(host, 'host.inventory', {});
        return { branches, blocks: await readBlocks(host.postgres) };
      });
      const rows = branches.map(({ database, state, branch_id, project_id }) => [
        database,
        state,
        branch_id,
        project_id,
      ]);
      const [addresses = [], blocked = []] = [true, false].map((isAttempts) =>
        blocks.filter(({ reason }) => (reason === 'attempts') === isAttempts),
      );
      print(command, { branches, blocked, blocked_addresses: addresses }, [
        ...table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]),
        ...blocks.map(({ database, address, reason, until }) => {
          const whom = reason === 'attempts' ? ` for ${address ?? 'all addresses'}` : '';
          return `${database} is blocked${whom} until ${until.toISOString()}: ${TOO_MANY[reason]}`;
        }),
      ]);
    });
