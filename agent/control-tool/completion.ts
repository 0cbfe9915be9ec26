import { Argument, Command } from 'commander';
import { printText } from './terminal.ts';

/** The subcommands and flags that can follow a path of commands. */
interface Position {
  path: string[];
  words: { word: string; description: string }[];
}

/** Prints a script that completes commands and flags, for `source <(branchgate-agent completion bash)`. */
export const completionCommand = (program: Command) =>
  new Command('completion')
    .description('Print a shell completion script')
    .addArgument(new Argument('<shell>').choices(Object.keys(SCRIPTS)))
    .action((shell: string) => {
      printText(SCRIPTS[shell]?.(program.name(), positionsBelow(program, [])) ?? '');
    });

function positionsBelow(command: Command, path: string[]): Position[] {
  const subcommands = command.commands.map((sub) => ({ word: sub.name(), description: sub.description() }));
  const flags = command.options.map(({ long, description }) => ({ word: long ?? '', description }));
  const below = command.commands.flatMap((sub) => positionsBelow(sub, [...path, sub.name()]));
  return [{ path, words: [...subcommands, ...flags] }, ...below];
}

const SCRIPTS: Record<string, (name: string, positions: Position[]) => string> = {
  bash: bashScript,
  zsh: (name, positions) => `autoload -U +X bashcompinit && bashcompinit\n${bashScript(name, positions)}`,
  fish: fishScript,
};

function bashScript(name: string, positions: Position[]): string {
  const cases = positions
    .map(
      ({ path, words }) => `    '${path.join(' ')}') words='${words.map(({ word }) => word).join(' ')}' ;;`,
    )
    .join('\n');
  const completer = `_${name.replaceAll('-', '_')}`;
  return `${completer}() {
  local word path='' words=''
  for word in "\${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case $word in -*) break ;; *) path="\${path:+$path }$word" ;; esac
  done
  case $path in
${cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "\${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F ${completer} ${name}
`;
}

function fishScript(name: string, positions: Position[]): string {
  return positions
    .flatMap(({ path, words }) =>
      words.map(({ word, description }) => {
        const offer = word.startsWith('--') ? `-l ${word.slice(2)}` : `-a ${word}`;
        const seen = path.map((part) => `__fish_seen_subcommand_from ${part}`).join('; and ');
        return `complete -c ${name} -f -n '${seen || '__fish_use_subcommand'}' ${offer} -d '${description.replaceAll("'", "\\'")}'\n`;
      }),
    )
    .join('');
}
