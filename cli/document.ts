import type { Command } from 'commander';
import { EXIT_CODES } from './exit-codes.ts';
import { commandsBelow, examplesOf, helpOf, isRunnable, wordsOf } from './program.ts';

const code = (text: string) => `\`${text.replaceAll('|', '\\|')}\``;
const cell = (text: string) => text.replaceAll('|', '\\|').replaceAll('<', '&lt;');

const table = (head: readonly string[], rows: readonly (readonly string[])[]) =>
  [head, head.map(() => '---'), ...rows].map((row) => `| ${row.join(' | ')} |`).join('\n');

const pathOf = (command: Command): string => ['branchgate', ...wordsOf(command)].join(' ');

const optionRows = (command: Command) =>
  command.options
    .filter(({ hidden }) => !hidden)
    .map((option) => [code(option.flags), cell(helpOf(command).optionDescription(option))]);

function section(command: Command): string {
  const path = pathOf(command);
  const args = command.registeredArguments.filter(({ description }) => description);
  const parts = [
    `### ${path}`,
    `${cell(command.description())}.`,
    `\`\`\`\n${path} ${command.usage()}\n\`\`\``,
    args.length > 0 &&
      table(
        ['argument', ''],
        args.map((argument) => [code(argument.name()), cell(helpOf(command).argumentDescription(argument))]),
      ),
    optionRows(command).length > 0 && table(['option', ''], optionRows(command)),
    examplesOf(command).length > 0 && `\`\`\`sh\n${examplesOf(command).join('\n')}\n\`\`\``,
  ];
  return parts.filter(Boolean).join('\n\n');
}

/** The page about every command, which is committed as `docs/cli.md`. */
export function documentOf(program: Command): string {
  const commands = commandsBelow(program).filter(
    (command) => command !== program && isRunnable(command) && !command.name().startsWith('_'),
  );
  const exits = Object.values(EXIT_CODES).map(({ code: exit, meaning, error }) => [
    String(exit),
    meaning,
    error === null ? '' : code(error),
  ]);
  return `# Command line

Generated from the commands by \`npm run cli:docs\`.

Data goes to standard output, everything else to standard error. A terminal gets tables, a pipe gets tab-separated values, and
\`--json\` gets the records of the API. Nothing waits for a person where nobody is: a command that needs an answer ends with
exit code 2 or 4 and says what to do instead.

Operations of the API without a command of their own, for instance those on members and webhooks, are sent by \`branchgate api\`.
\`source <(branchgate completion bash)\`, and the same for zsh and fish, completes commands, options and names.

\`exec\` and \`psql\` add the addresses of this machine as network rules of the branch if no rule lets them connect. They say so, and
remove the rules when they end. Of several commands of one user on one branch, the one that began last removes it. After a kill it
ends within an hour.

## Options of every command

${table(['option', ''], optionRows(program))}

## Exit codes

${table(['code', 'meaning', 'error of the command line'], exits)}

With \`--json\`, the last line of standard error is the error, in the form of the API's errors: \`{"error":"…","message":"…"}\`, and
what else the API sent, for instance \`request_id\` and \`details\`. An error of the command line has the code of this table.

\`exec\` and \`psql\` end with the exit code of the program that they ran.

## Environment

| variable | meaning |
| --- | --- |
| \`BRANCHGATE_URL\` | address of the gateway |
| \`BRANCHGATE_API_KEY\` | an API key; needs \`BRANCHGATE_URL\`, so that no file of a repository decides where it is sent |
| \`BRANCHGATE_TOKEN\` | an access token, in the same way |
| \`BRANCHGATE_PROJECT\` | name or ID of the project |
| \`BRANCHGATE_PLATFORM_SECRET\` | the secret of the platform's operator, for \`host\` only; needs \`BRANCHGATE_URL\` |
| \`NO_COLOR\` | no colour |

## Files

| file | content |
| --- | --- |
| \`.branchgate.json\` | gateway and project of a folder, to be committed |
| \`branchgate-branch\` in the git folder of a worktree | the branch that \`checkout\` pinned |
| \`~/.config/branchgate/profiles.json\`, \`tokens.json\` | sign-ins; the tokens are in the keychain of the operating system, or in this file, which only its owner can read |

## Commands

${commands.map(section).join('\n\n')}

Words that this page does not explain are in the [glossary](glossary.md).
`;
}
