import { Argument, Command } from 'commander';

/** What can follow a path of commands: subcommands and flags. */
interface Place {
  path: string[];
  words: { word: string; description: string }[];
}

/** Prints a script that completes commands and flags: `source <(branchgate-agent completion bash)`. */
export const completionCommand = (program: Command) =>
  new Command('completion')
    .description('Print a completion script for a shell')
    .addArgument(new Argument('<shell>').choices(Object.keys(SCRIPTS)))
    .action((shell: string) => {
      process.stdout.write(SCRIPTS[shell]?.(program.name(), placesBelow(program, [])) ?? '');
    });

function placesBelow(command: Command, path: string[]): Place[] {
  const subcommands = command.commands.map((sub) => ({ word: sub.name(), description: sub.description() }));
  const flags = command.options.map(({ long, description }) => ({ word: long ?? '', description }));
  const below = command.commands.flatMap((sub) => placesBelow(sub, [...path, sub.name()]));
  return [{ path, words: [...subcommands, ...flags] }, ...below];
}

const SCRIPTS: Record<string, (name: string, places: Place[]) => string> = {
  bash: bashScript,
  zsh: (name, places) => `autoload -U +X bashcompinit && bashcompinit\n${bashScript(name, places)}`,
  fish: fishScript,
};

function bashScript(name: string, places: Place[]): string {
  const cases = places
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

function fishScript(name: string, places: Place[]): string {
  return places
    .flatMap(({ path, words }) =>
      words.map(({ word, description }) => {
        const offer = word.startsWith('--') ? `-l ${word.slice(2)}` : `-a ${word}`;
        const seen = path.map((part) => `__fish_seen_subcommand_from ${part}`).join('; and ');
        return `complete -c ${name} -f -n '${seen || '__fish_use_subcommand'}' ${offer} -d '${description.replaceAll("'", "\\'")}'\n`;
      }),
    )
    .join('');
}
