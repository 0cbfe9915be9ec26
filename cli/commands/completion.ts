import { Argument, Command, type Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { openSession, projectOf } from '../session.ts';

/** The hidden command with which the scripts ask for candidates: the words of the line, the last one unfinished. */
const COMPLETE = '__complete';

const SCRIPTS: Record<string, (name: string) => string> = {
  bash: (name) => `_${name}() {
  local IFS=$'\\n'
  COMPREPLY=($(compgen -W "$(${name} ${COMPLETE} -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _${name} ${name}
`,
  zsh: (name) => `#compdef ${name}
_${name}() {
  local -a found
  found=("\${(@f)$(${name} ${COMPLETE} -- "\${(@)words[2,CURRENT]}" 2>/dev/null)}")
  (( \${#found} )) && compadd -- $found || _files
}
compdef _${name} ${name}
`,
  fish: (name) => `function __${name}_complete
  set -l words (commandline -opc) (commandline -ct)
  ${name} ${COMPLETE} -- $words[2..-1] 2>/dev/null
end
complete -c ${name} -f -a '(__${name}_complete)'
`,
};

/** Prints the script of a shell, for instance for `source <(branchgate completion bash)`. */
const completion = () =>
  new Command('completion')
    .description('Print a completion script for a shell')
    .addArgument(new Argument('<shell>').choices(Object.keys(SCRIPTS)))
    .addHelpText(
      'after',
      '\nExample:\n  source <(branchgate completion bash)\n  branchgate completion fish | source',
    )
    .action((shell: string) => {
      process.stdout.write(SCRIPTS[shell]?.('branchgate') ?? '');
    });

/** Options and arguments whose value is the name of a branch. */
const NAMES_BRANCH = /^(?:--branch|--from)$/;
const isBranchArgument = (argument: Argument) => /^branch(?:es)?$/.test(argument.name());

const isNamed = ({ short, long }: Option, word: string) => word === short || word === long;

const takesValue = (command: Command, word: string) =>
  [command, ...ancestorsOf(command)].some(({ options }) =>
    options.some((option) => isNamed(option, word) && option.required),
  );

function* ancestorsOf({ parent }: Command): Generator<Command> {
  if (!parent) return;
  yield parent;
  yield* ancestorsOf(parent);
}

/** The command of a line and how many arguments it has, and whether the last word is an option that takes a value. */
function positionOf(program: Command, words: readonly string[]) {
  let command = program;
  let argumentsGiven = 0;
  let open: string | null = null;
  for (const word of words) {
    if (open !== null) open = null;
    else if (word.startsWith('-')) open = takesValue(command, word) ? word : null;
    else {
      const below = command.commands.find((sub) => sub.name() === word);
      if (below) command = below;
      else argumentsGiven += 1;
    }
  }
  return { command, argumentsGiven, open };
}

/** The words that can follow; `branches` stands for the names of branches. */
export function candidatesOf(
  program: Command,
  line: readonly string[],
): { words: string[]; branches: boolean } {
  const current = line.at(-1) ?? '';
  const { command, argumentsGiven, open } = positionOf(program, line.slice(0, -1));
  if (open !== null) {
    const option = [command, ...ancestorsOf(command)]
      .flatMap(({ options }) => options)
      .find((one) => isNamed(one, open));
    return { words: option?.argChoices ?? [], branches: NAMES_BRANCH.test(open) };
  }
  if (current.startsWith('-')) {
    const options = [command, ...ancestorsOf(command)].flatMap(({ options }) => options);
    return { words: options.flatMap(({ long }) => long ?? []), branches: false };
  }
  const subcommands = command.commands.map((sub) => sub.name()).filter((name) => name !== COMPLETE);
  if (subcommands.length > 0) return { words: subcommands, branches: false };
  const { registeredArguments: args } = command;
  const argument = args[argumentsGiven] ?? (args.at(-1)?.variadic ? args.at(-1) : undefined);
  return {
    words: argument?.argChoices ?? [],
    branches: argument !== undefined && isBranchArgument(argument),
  };
}

const complete = (program: Command) =>
  new Command(COMPLETE).argument('[words...]').action(async (line: string[], _options, command: Command) => {
    const { words, branches } = candidatesOf(program, line);
    const found = branches ? [...words, ...(await branchNames(command).catch(() => []))] : words;
    const current = line.at(-1) ?? '';
    process.stdout.write(
      found
        .filter((word) => word.startsWith(current))
        .map((word) => `${word}\n`)
        .join(''),
    );
  });

async function branchNames(command: Command): Promise<string[]> {
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  const { branches } = await dataOf(
    session.client.api.GET('/api/v1/projects/{project_id}/branches', { params: { path } }),
  );
  return branches.map(({ branch_name }) => branch_name);
}

export function addCompletion(program: Command): void {
  program.addCommand(completion());
  program.addCommand(complete(program), { hidden: true });
}
