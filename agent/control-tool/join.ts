import { Command, InvalidArgumentError, Option } from 'commander';
import { type JoinOptions, lookAround } from '../join/context.ts';
import { type Kind, Machine, StepFailure } from '../join/machine.ts';
import { applySteps, REJOIN_STEPS, STEPS, type StepReport, takeBack } from '../join/steps.ts';
import { installedProgram } from '../upgrade/program-file.ts';
import { GatewayError, RefusedError, UsageError } from './exit-codes.ts';
import { printJson, printText, readValue } from './terminal.ts';

const NAMES = STEPS.map(({ name }) => name);

const STEPS_HELP = `Steps, in this order. A step that was done changes nothing, so after an error the command is repeated.
${STEPS.map(({ name, what }) => `  ${name.padEnd(12)}${what}`).join('\n')}`;

interface Common {
  dryRun?: boolean;
  root?: string;
  json?: boolean;
}

type Options = Common & JoinOptions & { only?: string[] };

const errorOf: Record<Kind, (message: string) => Error> = {
  usage: (message) => new UsageError(message),
  refused: (message) => new RefusedError(message),
  unreachable: (message) => new GatewayError(message),
  failed: (message) => new Error(message),
};

const dryRun = () => new Option('--dry-run', 'only print what would change');
/** For tests, which run the steps on a folder. */
const root = () => new Option('--root <folder>', 'folder that stands for /').hideHelp();

/** A new host, from both servers as Debian installs them to a linked agent. */
export const joinCommand = () =>
  new Command('join')
    .description('Configure this machine as a database host, enrol it at the gateway and start the agent')
    .option('--gateway <url>', 'address of the gateway (default: the one in the settings)')
    .option('--host <name>', 'name of this host at the gateway')
    .option('--token <token>', 'the one-time token; `@file` reads it from a file, `-` from standard input')
    .option('--tls-cert <path>', 'TLS certificate of both servers with its chain (PEM); it is copied')
    .option('--tls-key <path>', 'private key of the certificate (PEM); it is copied')
    .option('--cluster <version/name>', "PostgreSQL's cluster, if there are several")
    .option('--log-directory <path>', "folder for PostgreSQL's logs, best on a volume of its own")
    .option('--listen <addresses>', 'addresses that both servers listen on', '*')
    .option('--only <step>', 'do only this step; can be repeated', collectStep)
    .option('--despite-problems', 'start the agent although doctor found problems')
    .addOption(dryRun())
    .addOption(root())
    .addHelpText('after', `\n${STEPS_HELP}`)
    .action(async (given: Options, command: Command) => {
      const { only, ...options } = given;
      if (options.token !== undefined)
        options.token = String(await readValue('text', 'token', options.token));
      const steps = STEPS.filter(({ name }) => only?.includes(name) ?? true);
      await run(command, options, (context, onDone) => applySteps(context, steps, onDone));
    });

/** Takes back what `join` did, and leaves the databases. */
export const leaveCommand = () =>
  new Command('leave')
    .description('Stop the agent and put back the configuration of before `join`; databases stay')
    .option('--cluster <version/name>', "PostgreSQL's cluster, if there are several")
    .option('--host <name>', 'name of this host at the gateway')
    .addOption(dryRun())
    .addOption(root())
    .action((options: Common & Pick<JoinOptions, 'cluster' | 'host'>, command: Command) =>
      run(command, { listen: '*', ...options }, (context, onDone) => takeBack(context, onDone)),
    );

/** A machine whose data is replaced by that of the present primary. */
export const rejoinCommand = () =>
  new Command('rejoin')
    .description('Copy the primary again, on a standby that was away for too long or on a former primary')
    .option('--cluster <version/name>', "PostgreSQL's cluster, if there are several")
    .option('--despite-problems', 'start the agent although doctor found problems')
    .addOption(dryRun())
    .addOption(root())
    .action((options: Common & Pick<JoinOptions, 'cluster' | 'despiteProblems'>, command: Command) =>
      run(command, { listen: '*', ...options }, (context, onDone) =>
        applySteps(context, REJOIN_STEPS, onDone),
      ),
    );

type Act = (
  context: Awaited<ReturnType<typeof lookAround>>,
  onDone: (report: StepReport) => void,
) => Promise<void>;

/** Prints each step when it is done, or all of them as one JSON document. */
async function run(command: Command, options: Common & JoinOptions, act: Act): Promise<void> {
  const { json = false } = command.optsWithGlobals<{ json?: boolean }>();
  const machine = new Machine({ root: options.root ?? '', isDryRun: options.dryRun ?? false });
  const reports: StepReport[] = [];
  const isDryRun = machine.isDryRun;
  const onDone = (report: StepReport) => {
    reports.push(report);
    if (!json) printText(textOf(report, isDryRun));
  };
  try {
    await act(await lookAround(machine, options, [process.execPath, installedProgram()]), onDone);
  } catch (error) {
    throw error instanceof StepFailure ? errorOf[error.kind](error.message) : error;
  } finally {
    if (json) printJson({ dry_run: isDryRun, steps: reports });
  }
}

function textOf({ step, changes, notes }: StepReport, isDryRun: boolean): string {
  const state = changes.length === 0 ? 'nothing to change' : isDryRun ? 'would change' : 'changed';
  return [`${step}: ${state}`, ...changes, ...notes].join('\n  ').concat('\n');
}

function collectStep(name: string, before: string[] = []): string[] {
  if (!NAMES.includes(name)) throw new InvalidArgumentError(`It is one of ${NAMES.join(', ')}.`);
  return [...before, name];
}
