import type { Command } from 'commander';

/**
 * Text for troff: a backslash begins a command, and a line that begins with a dot or an apostrophe is one.
 */
const escaped = (text: string) =>
  text
    .replaceAll('\\', '\\e')
    .replaceAll('-', '\\-')
    .replaceAll(/^(?=[.'])/gm, '\\&');

const bold = (text: string) => `\\fB${escaped(text)}\\fR`;

/** The subcommands at the ends of the tree, which are those that do something. */
const commandsBelow = (command: Command): Command[] =>
  command.commands.length === 0 ? [command] : command.commands.flatMap(commandsBelow);

const pathOf = (command: Command): string =>
  command.parent?.parent ? `${pathOf(command.parent)} ${command.name()}` : command.name();

function section(command: Command): string {
  const options = command.options
    .filter(({ hidden }) => !hidden)
    .map(({ flags, description }) => `.RS\n.TP\n${bold(flags)}\n${escaped(description)}\n.RE`);
  return [
    `.TP\n${bold(pathOf(command))} ${escaped(command.usage())}`,
    `${escaped(command.description())}.`,
    ...options,
  ].join('\n');
}

/**
 * The manual page of the control tool, from its commands (man(7)).
 * @param date of the release, as YYYY-MM-DD
 * @param exitCodes with their meanings
 */
export function manualPage(
  program: Command,
  { date, exitCodes }: { date: string; exitCodes: readonly { code: number; meaning: string }[] },
): string {
  const name = program.name();
  const globalOptions = program.options.map(
    ({ flags, description }) => `.TP\n${bold(flags)}\n${escaped(description)}`,
  );
  return `.TH ${name.toUpperCase()} 8 ${date} "branchgate ${program.version()}"
.SH NAME
${escaped(name)} \\- agent of a branchgate database host, and its control tool
.SH SYNOPSIS
.B ${escaped(name)}
.I command
.RI [ options ]
.SH DESCRIPTION
${escaped(program.description())}
The service ${bold('branchgate-agent.service')} runs it; PostgreSQL and PgBouncer accept it as their system user only:
.PP
.EX
runuser -u postgres \\-\\- ${escaped(name)} doctor
.EE
.SH OPTIONS
${globalOptions.join('\n')}
.SH COMMANDS
${commandsBelow(program).map(section).join('\n')}
.SH EXIT STATUS
${exitCodes.map(({ code, meaning }) => `.TP\n.B ${code}\n${escaped(meaning)}`).join('\n')}
.SH FILES
.TP
.I /etc/branchgate/agent.env
settings of the agent, which are environment variables
.TP
.I /var/lib/branchgate
key of the host, and the rules that both servers include
.TP
.I /opt/branchgate
the program that runs, and the release before it until this one has linked
`;
}
