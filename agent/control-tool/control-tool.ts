import { Command, CommanderError } from 'commander';
import { VERSION } from '../../shared/version.ts';
import type { Trial } from '../upgrade/trial.ts';
import { archiveWalCommand } from './archive-wal.ts';
import { completionCommand } from './completion.ts';
import { configurationCommand } from './configuration.ts';
import { doctorCommand } from './doctor.ts';
import { enrolCommand } from './enrol.ts';
import { EXIT_CODES, exitCodeOf, explain } from './exit-codes.ts';
import { joinCommand, leaveCommand, rejoinCommand } from './join.ts';
import { listCommand } from './list.ts';
import { makeTablesCommand } from './make-tables.ts';
import { measureCommand } from './measure.ts';
import { operationCommands } from './operations.ts';
import { poolerCommand } from './pooler.ts';
import { runCommand } from './run-agent.ts';
import { copyPrimaryCommand, gateCommand, guardLeaseCommand } from './standby.ts';
import { say } from './terminal.ts';
import { upgradeCommand } from './upgrade.ts';

const NAME = 'branchgate-agent';

const EXIT_CODE_HELP = Object.values(EXIT_CODES)
  .map(({ code, meaning }) => `  ${code}  ${meaning}`)
  .join('\n');

const SETTINGS_HELP = `Settings are environment variables. The service reads them from /etc/branchgate/agent.env.
In a shell, load them first:
  set -a; . /etc/branchgate/agent.env; set +a`;

/**
 * Runs one command of the control tool.
 * @param words the command line after the program's name
 * @param trial of this program, if it runs as the agent
 * @returns the process's exit code
 */
export async function runControlTool(words: readonly string[], trial: Trial | null): Promise<number> {
  try {
    const program = controlTool(trial);
    await program.parseAsync(words, { from: 'user' });
    return EXIT_CODES.ok.code;
  } catch (error) {
    // Commander has already printed its error or the help.
    if (error instanceof CommanderError)
      return error.exitCode === 0 ? EXIT_CODES.ok.code : EXIT_CODES.usage.code;
    const explanation = explain(error);
    if (explanation) say(`${NAME}: ${explanation}`);
    return exitCodeOf(error);
  }
}

/** The whole program, whose help is also its manual page. */
export function controlTool(trial: Trial | null): Command {
  const program = new Command(NAME)
    .description('The agent of a database host, and each of its operations as a command.')
    .version(VERSION)
    .option('--json', 'print results as JSON')
    .configureHelp({ showGlobalOptions: true })
    .showSuggestionAfterError()
    .addHelpText('after', `\n${SETTINGS_HELP}\n\nExit codes:\n${EXIT_CODE_HELP}`);
  program.addCommand(runCommand(trial));
  program.addCommand(enrolCommand());
  program.addCommand(joinCommand());
  program.addCommand(leaveCommand());
  program.addCommand(rejoinCommand());
  program.addCommand(gateCommand());
  program.addCommand(guardLeaseCommand());
  program.addCommand(copyPrimaryCommand());
  program.addCommand(archiveWalCommand());
  program.addCommand(makeTablesCommand());
  program.addCommand(doctorCommand());
  program.addCommand(listCommand());
  program.addCommand(measureCommand());
  program.addCommand(configurationCommand());
  program.addCommand(upgradeCommand());
  program.addCommand(poolerCommand());
  for (const command of operationCommands()) program.addCommand(command);
  program.addCommand(completionCommand(program));
  inheritSettings(program);
  return program;
}

/** Makes every command throw instead of ending the process, and applies the help settings to all. */
function inheritSettings(parent: Command) {
  parent.exitOverride();
  for (const command of parent.commands) {
    command.copyInheritedSettings(parent);
    inheritSettings(command);
  }
}
