import { Command } from 'commander';
import { makeAgentTables, needsAgentTables } from '../postgres/agent-tables.ts';
import { print } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

/** `join` runs it as the agent's user, because `doctor` reads these tables before the agent has started. */
export const makeTablesCommand = () =>
  new Command('make-tables')
    .description("Make or migrate the agent's own database, as the agent does when it starts")
    .option('--check', 'only report whether it is needed')
    .action(async ({ check = false }: { check?: boolean }, command: Command) => {
      const settings = readShellSettings();
      const needed = await needsAgentTables(settings);
      if (needed && !check) await makeAgentTables(settings);
      print(command, { needed });
    });
