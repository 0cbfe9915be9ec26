import { Argument, Command, type Option } from 'commander';
import { dataOf } from '../../client/response-error.ts';
import { printableLine } from '../../shared/printable.ts';
import { take } from '../../shared/take.ts';
import { printText } from '../output.ts';
import { branchPath, openOperatorSession, openSession, projectOf } from '../session.ts';
import { readProfiles } from '../stored.ts';

/**
 * The hidden command with which the scripts ask for candidates: the words of the line, the last one
 * unfinished.
 */
const COMPLETE = '__complete';

/** No shell may expand a candidate: other people choose the names of tables and projects. */
export const SCRIPTS: Record<string, (name: string) => string> = {
  bash: (name) => `_${name}() {
  local word
  COMPREPLY=()
  while IFS= read -r word; do
    COMPREPLY+=("$(printf %q "$word")")
  done < <(${name} ${COMPLETE} -- "\${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _${name} ${name}
`,
  zsh: (name) => `#compdef ${name}
_${name}() {
  local -a found
  found=(\${(f)"$(${name} ${COMPLETE} -- "\${(@)words[2,CURRENT]}" 2>/dev/null)"})
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
    .action((shell: string) => {
      printText(SCRIPTS[shell]?.('branchgate') ?? '');
    });

type Kind =
  | 'branches'
  | 'checkpoints'
  | 'deleted'
  | 'projects'
  | 'snapshots'
  | 'hosts'
  | 'profiles'
  | 'tables';

/** What the value of an option is the name of. */
const KIND_OF_OPTION: Record<string, Kind> = {
  '--branch': 'branches',
  '--from': 'branches',
  '--confirm': 'branches',
  '--project': 'projects',
  '--snapshot': 'snapshots',
  '--to': 'snapshots',
  '--profile': 'profiles',
};

/** The same for options that name something else in one command. `--from` of a copy is the address of a source. */
const KIND_IN_COMMAND: Record<string, Record<string, Kind | null>> = {
  import: { '--from': null },
  follow: { '--from': null },
  undo: { '--to': 'checkpoints' },
};

/** The same for arguments. */
const KIND_OF_ARGUMENT: Record<string, Kind> = {
  branch: 'branches',
  branches: 'branches',
  deleted: 'deleted',
  project: 'projects',
  snapshot: 'snapshots',
  host: 'hosts',
  profile: 'profiles',
  table: 'tables',
};

function* ancestorsOf({ parent }: Command): Generator<Command> {
  if (!parent) return;
  yield parent;
  yield* ancestorsOf(parent);
}

const optionsAt = (command: Command): Option[] =>
  [command, ...ancestorsOf(command)].flatMap(({ options }) => options);

/**
 * The command of a line, how many arguments and which values it has, and the option whose value is the last
 * word.
 */
function positionOf(program: Command, words: readonly string[]) {
  let command = program;
  let argumentsGiven = 0;
  let open: Option | null = null;
  const typed: Record<string, string> = {};
  for (const word of words) {
    if (open !== null) {
      typed[open.attributeName()] = word;
      open = null;
    } else if (word.startsWith('-')) {
      const [, name, value] = /^([^=]+)(?:=(.*))?$/s.exec(word) ?? [];
      const option = optionsAt(command).find(({ short, long }) => name === short || name === long);
      if (!option?.required) continue;
      if (value === undefined) open = option;
      else typed[option.attributeName()] = value;
    } else {
      const below = command.commands.find((sub) => sub.name() === word);
      if (below) command = below;
      else {
        if (command.registeredArguments[argumentsGiven]?.name() === 'branch') typed.branch = word;
        argumentsGiven += 1;
      }
    }
  }
  return { command, argumentsGiven, open, typed };
}

interface Candidates {
  words: readonly string[];
  /** What names can follow too. */
  names: Kind | null;
}

/** The values of options that are typed already. */
interface Typed {
  profile?: string;
  project?: string;
  branch?: string;
}

/** Bash splits `--option=value` into three words. */
const isEquals = (word: string, before: string | undefined) =>
  word === '=' && before?.startsWith('--') === true;

interface Completion extends Candidates {
  typed: Typed;
  /** What is to be completed; `prefix` precedes it in the same word: `--option=`. */
  current: string;
  prefix: string;
}

/** The words that can follow. */
export function completionOf(program: Command, line: readonly string[]): Completion {
  const last = line.at(-1) ?? '';
  const isValue = isEquals(last, line.at(-2));
  const [prefix = '', option] = (!isValue && /^(--[^=]+)=/.exec(last)) || [];
  const current = isValue ? '' : last.slice(prefix.length);
  const before = line.slice(0, -1).filter((word, index) => !isEquals(word, line[index - 1]));
  const { typed, ...position } = positionOf(program, option === undefined ? before : [...before, option]);
  const takesNoValue = option !== undefined && position.open === null;
  const candidates = takesNoValue ? { words: [], names: null } : wordsAt(position, current);
  return { ...candidates, typed, current, prefix };
}

function wordsAt(
  { command, argumentsGiven, open }: Omit<ReturnType<typeof positionOf>, 'typed'>,
  current: string,
): Candidates {
  if (open !== null) {
    const name = open.long ?? '';
    const special = KIND_IN_COMMAND[command.name()]?.[name];
    const names = special === undefined ? (KIND_OF_OPTION[name] ?? null) : special;
    return { words: open.argChoices ?? [], names };
  }
  if (current.startsWith('-'))
    return { words: optionsAt(command).flatMap(({ long }) => long ?? []), names: null };
  const subcommands = command.commands.map((sub) => sub.name()).filter((name) => name !== COMPLETE);
  if (subcommands.length > 0) return { words: subcommands, names: null };
  const { registeredArguments: args } = command;
  const argument = args[argumentsGiven] ?? (args.at(-1)?.variadic ? args.at(-1) : undefined);
  return { words: argument?.argChoices ?? [], names: KIND_OF_ARGUMENT[argument?.name() ?? ''] ?? null };
}

const complete = (program: Command) =>
  new Command(COMPLETE).argument('[words...]').action(async (line: string[], _options, command: Command) => {
    const { words, names, typed, current, prefix } = completionOf(program, line);
    // The completed line has them after `--`, so that they are no options of this one.
    for (const [name, value] of Object.entries(typed)) command.setOptionValue(name, value);
    const found = names === null ? words : [...words, ...(await NAMES[names](command).catch(() => []))];
    printText(
      found
        .filter((word) => word.startsWith(current) && word === printableLine(word))
        .map((word) => `${prefix}${word}\n`)
        .join(''),
    );
  });

const PROJECT = '/api/v1/projects/{project_id}';

async function branchNames(command: Command, query: { status?: 'deleted' } = {}): Promise<string[]> {
  const session = openSession(command);
  const path = { project_id: await projectOf(command, session) };
  const { branches } = await dataOf(
    session.client.api.GET(`${PROJECT}/branches`, { params: { path, query } }),
  );
  return branches.map(({ branch_name }) => branch_name);
}

/** The names of each kind, as the person who completes a line may see them. */
const NAMES: Record<Kind, (command: Command) => Promise<string[]>> = {
  branches: (command) => branchNames(command),
  deleted: (command) => branchNames(command, { status: 'deleted' }),
  projects: async (command) =>
    (await take(openSession(command).client.all('/api/v1/projects'))).map(({ name }) => name),
  async snapshots(command) {
    const session = openSession(command);
    const path = { project_id: await projectOf(command, session) };
    const found = await take(session.client.all(`${PROJECT}/snapshots`, { params: { path } }));
    return found.map(({ name, id }) => name ?? id);
  },
  async checkpoints(command) {
    const session = openSession(command);
    const path = await branchPath(command, session, command.opts<Typed>().branch);
    const found = await take(
      session.client.all(`${PROJECT}/branches/{branch_ref}/checkpoints`, { params: { path } }),
    );
    return found.map(({ label, checkpoint_id }) => label ?? checkpoint_id);
  },
  hosts: async () =>
    (await take(openOperatorSession().client.all('/platform/v1/hosts'))).map(({ name }) => name),
  profiles: async () => Object.keys(readProfiles().profiles),
  async tables(command) {
    const session = openSession(command);
    const path = await branchPath(command, session, command.opts<Typed>().branch);
    const { tables } = await dataOf(
      session.client.api.GET(`${PROJECT}/branches/{branch_ref}/tables`, { params: { path } }),
    );
    return tables.map(({ name }) => name);
  },
};

export function addCompletion(program: Command): void {
  program.addCommand(completion().helpGroup('Other:'));
  program.addCommand(complete(program), { hidden: true });
}
