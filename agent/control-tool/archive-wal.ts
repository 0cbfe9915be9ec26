import { Command } from 'commander';
import { archiveWal } from '../past/archive-wal.ts';
import { ARCHIVE_WAL } from '../servers/archive-command.ts';
import { say } from './terminal.ts';

/** For the help: `main.ts` runs the command itself, without the others. */
export const archiveWalCommand = () =>
  new Command(ARCHIVE_WAL)
    .description('Store a file of the WAL for recoveries, as the archive_command of PostgreSQL')
    .argument('<folder>', 'PAST_DIR')
    .argument('<path>', 'the file, relative to the data of PostgreSQL: %p')
    .action(async (folder: string, path: string) => {
      process.exitCode = await archiveWal(folder, path, say);
    });
