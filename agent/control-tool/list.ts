import { Command } from 'commander';
import { buildDatabaseName } from '../../shared/branch/database-name.ts';
import { readBlocks, type StoredBlock } from '../blocks/stored-blocks.ts';
import { performOperation } from '../operations/handlers.ts';
import { readResets } from '../postgres/branches.ts';
import { print, table } from './terminal.ts';
import { withHost } from './with-host.ts';

const TOO_MANY: Record<StoredBlock['reason'], string> = {
  attempts: 'too many connection attempts',
  autovacuum: 'its functions held workers of autovacuum',
  connections: 'too many connections',
  disk: 'it fills the disk',
  files: 'its project has too many tables',
  locks: 'too many locks',
  transaction_ids: 'too many transactions',
};

export const listCommand = () =>
  new Command('list')
    .description('List the branches on this host, and the clones of resets that are under way')
    .action(async (_options, command: Command) => {
      const { branches, blocks, resets } = await withHost(async (host) => {
        const { branches } = await performOperation(host, 'host.inventory', {});
        const [blocks, jobs] = await Promise.all([readBlocks(host.postgres), readResets(host.postgres)]);
        const resets = jobs.map((job_id) => ({ job_id, database: buildDatabaseName(job_id) }));
        return { branches, blocks, resets };
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
      print(command, { branches, resets, blocked, blocked_addresses: addresses }, [
        ...table([['DATABASE', 'STATE', 'BRANCH', 'PROJECT'], ...rows]),
        ...resets.map(({ database, job_id }) => `${database} is the clone of the reset by job ${job_id}`),
        ...blocks.map(({ database, address, reason, until }) => {
          const whom = reason === 'attempts' ? ` for ${address ?? 'all addresses'}` : '';
          return `${database} is blocked${whom} until ${until.toISOString()}: ${TOO_MANY[reason]}`;
        }),
      ]);
    });
