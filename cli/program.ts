import { Command, Help } from 'commander';
import { accessCommands } from './commands/access.ts';
import { apiCommand } from './commands/api.ts';
import { bisectCommand } from './commands/bisect.ts';
import { branchCommand } from './commands/branch.ts';
import { changeCommand } from './commands/change.ts';
import { checkpointCommand, undoCommand } from './commands/checkpoint.ts';
import { addCompletion } from './commands/completion.ts';
import { connectionCommands } from './commands/connections.ts';
import { doctorCommand } from './commands/doctor.ts';
import { execCommand } from './commands/exec.ts';
import { followCommand } from './commands/follow.ts';
import { envCommand, gitCommand } from './commands/git.ts';
import { hostCommand } from './commands/host.ts';
import { importCommand } from './commands/import.ts';
import { linkCommands } from './commands/link.ts';
import { maskingCommand } from './commands/masking.ts';
import { mcpCommand } from './commands/mcp.ts';
import { projectCommand } from './commands/project.ts';
import { readingCommands } from './commands/reading.ts';
import { rehearseCommand } from './commands/rehearse.ts';
import { signInCommands } from './commands/sign-in.ts';
import { snapshotCommand } from './commands/snapshot.ts';
import { tableCommands } from './commands/tables.ts';
import { tryCommand } from './commands/try.ts';
import { EXAMPLES } from './examples.ts';
import { EXIT_CODES } from './exit-codes.ts';

const EXIT_HELP = Object.values(EXIT_CODES)
  .map(({ code, meaning }) => `  ${String(code).padStart(3)}  ${meaning}`)
  .join('\n');

const ENVIRONMENT = `  BRANCHGATE_URL      address of the gateway
  BRANCHGATE_API_KEY  an API key, or BRANCHGATE_TOKEN an access token; both need BRANCHGATE_URL
  BRANCHGATE_PROJECT  name or ID of the project`;

const BEGIN = `  branchgate login https://api.example.com
  branchgate project create shop
  branchgate exec --ephemeral -- psql -c 'select 1'`;

/** The commands under the headings of the help. */
const commandGroups = (): Record<string, Command[]> => ({
  'Sign-in and projects:': [...signInCommands(), ...linkCommands(), projectCommand()],
  'Branches:': [
    branchCommand(),
    snapshotCommand(),
    checkpointCommand(),
    undoCommand(),
    bisectCommand(),
    rehearseCommand(),
    tryCommand(),
    changeCommand(),
    importCommand(),
    followCommand(),
  ],
  'Connections:': [...connectionCommands(), execCommand(), envCommand(), gitCommand()],
  'Data:': [...tableCommands(), maskingCommand()],
  'Access:': accessCommands(),
  'Observation:': readingCommands(),
  'Other:': [hostCommand(), apiCommand(), doctorCommand(), mcpCommand()],
});

/** The whole command tree. */
export function createProgram(version: string): Command {
  const program = new Command('branchgate')
    .description('PostgreSQL databases with copy-on-write branches')
    .version(version, '--version', 'print the version')
    .option('--profile <name>', 'profile of the sign-in')
    .option(
      '--project <project>',
      'name or ID (default: BRANCHGATE_PROJECT, the linked one, or the only one)',
    )
    .option(
      '--json [fields]',
      "print the API's records as JSON, all fields or those named, separated by commas; an error is JSON on standard error",
    )
    .option('-y, --yes', 'answer yes to every question')
    .addHelpText(
      'after',
      `\nBegin with:\n${BEGIN}\n\nExit codes:\n${EXIT_HELP}\n\nEnvironment:\n${ENVIRONMENT}`,
    );
  for (const [heading, commands] of Object.entries(commandGroups()))
    for (const command of commands) program.addCommand(command.helpGroup(heading));
  addCompletion(program);
  for (const command of commandsBelow(program)) {
    const isProgram = command === program;
    command
      .exitOverride()
      .helpOption('-h, --help', 'print help')
      .helpCommand(false)
      .configureHelp({ showGlobalOptions: !isProgram })
      .showHelpAfterError(`See \`${['branchgate', ...wordsOf(command), '--help'].join(' ')}\`.`);
    const examples = examplesOf(command);
    if (examples.length > 0)
      command.addHelpText('after', `\nExamples:\n${examples.map((line) => `  ${line}`).join('\n')}`);
  }
  return program;
}

/** The words of a command, without those of the program. */
export const wordsOf = (command: Command): string[] =>
  command.parent ? [...wordsOf(command.parent), command.name()] : [];

export const examplesOf = (command: Command): readonly string[] => EXAMPLES[wordsOf(command).join(' ')] ?? [];

/** Every command, with the program itself first. */
export function commandsBelow(command: Command): Command[] {
  return [command, ...command.commands.flatMap(commandsBelow)];
}

/** Whether it does something itself: a group does not, unless it has options of its own. */
export const isRunnable = ({ commands, options }: Command): boolean =>
  commands.length === 0 || options.length > 0;

export const helpOf = (command: Command): Help => Object.assign(new Help(), command.configureHelp());
