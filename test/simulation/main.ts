import { readFileSync } from 'node:fs';
import { Command, InvalidArgumentError, Option } from 'commander';
import { keepTemporaryFilesInMemory } from '../support/memory-folder.ts';
import { PLANT_NAMES, type PlantName } from './plants.ts';
import { failureText, progressText, saveFailure, summaryText } from './report.ts';
import { runScale, type Scale } from './scale/run-scale.ts';
import { writeScaleReport } from './scale/scale-report.ts';
import { Schedule } from './schedule.ts';
import { SHRINKING_TRIES, schedulesFrom, simulate } from './simulation.ts';

/** `npm run simulate`: random work and random faults on a real stack, decided by a seed. */

interface Options {
  seed: number;
  schedules: number;
  stacks: number;
  hosts: number;
  standby?: true;
  short?: true;
  replay?: string;
  plant?: PlantName;
  keepGoing?: true;
  shrink: number;
  failures: string;
  json?: true;
  scale?: Scale;
}

function wholeNumber(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('It has to be a whole number.');
  return Number(text);
}

/** Of a stage. */
function hostsOf(text: string): number {
  if (text !== '1' && text !== '2') throw new InvalidArgumentError('It has to be 1 or 2.');
  return Number(text);
}

function countOf(text: string): number {
  const count = wholeNumber(text);
  if (count === 0) throw new InvalidArgumentError('It has to be at least 1.');
  return count;
}

/** `hosts=100,branches=100000`, and `measurements=60` for a whole hour. */
function scaleOf(text: string): Scale {
  const given = Object.fromEntries(text.split(',').map((part) => part.split('=')));
  const number = (name: string, otherwise?: number): number => {
    const value = Number(given[name] ?? otherwise);
    if (!(Number.isInteger(value) && value > 0))
      throw new InvalidArgumentError(`${name} has to be a whole number.`);
    return value;
  };
  return { hosts: number('hosts'), branches: number('branches'), measurements: number('measurements', 5) };
}

keepTemporaryFilesInMemory();
const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => interrupted.abort());
}

const readSchedule = (file: string): Schedule => Schedule.parse(JSON.parse(readFileSync(file, 'utf8')));

async function simulateScale(scale: Scale): Promise<boolean> {
  writeScaleReport(await runScale(scale, interrupted.signal, console.log));
  console.log('written to docs/scale.md');
  return true;
}

async function run(options: Options): Promise<boolean> {
  if (options.scale) return simulateScale(options.scale);
  const { seed, replay, stacks, plant, json } = options;
  // With --json nothing but the summary is on standard output.
  const say = json ? console.error : console.log;
  const summary = await simulate({
    schedules: replay
      ? [readSchedule(replay)]
      : schedulesFrom(seed, options.schedules, options.short ? 'short' : 'full', {
          hosts: options.hosts,
          standby: options.standby ?? false,
        }),
    stacks,
    planted: plant,
    keepGoing: options.keepGoing ?? false,
    shrinkingTries: options.shrink,
    signal: interrupted.signal,
    onSchedule: (report) => say(progressText(report)),
    onShrinking: ({ seed }) => say(`shrinking the schedule of seed ${seed}`),
    onFailure: (failure) => say(failureText(failure, saveFailure(options.failures, failure))),
  });
  say(summaryText(summary));
  if (json) console.log(JSON.stringify(summary));
  return summary.failures.length === 0 && !interrupted.signal.aborted;
}

const command = new Command('simulate')
  .description('Run seeded schedules of operations and faults on a real stack, and check what each leaves')
  .option('--seed <n>', 'the first seed; the others follow it', wholeNumber, 1)
  .option('--schedules <k>', 'how many', countOf, 20)
  .option('--stacks <n>', 'how many run concurrently, each on a stack of its own', countOf, 1)
  .option(
    '--hosts <n>',
    'database hosts; with 2, projects move between them, and hosts are cut off',
    hostsOf,
    1,
  )
  .option('--standby', 'the host has a standby, which takes its place and is replaced again')
  .option('--short', 'schedules as short as those of `npm test`')
  .option('--replay <file>', 'run the schedule of this file instead')
  .addOption(
    new Option('--plant <name>', 'build a fault into the agent, to see it found').choices(PLANT_NAMES),
  )
  .option(
    '--scale <size>',
    'simulate many hosts instead, and write docs/scale.md: hosts=100,branches=100000',
    scaleOf,
  )
  .option('--keep-going', 'continue after a failure')
  .option('--shrink <tries>', 'runs to make a failing schedule smaller with', wholeNumber, SHRINKING_TRIES)
  .option('--failures <folder>', 'where failing schedules are stored', '.dev/simulation')
  .option('--json', 'print the summary as JSON on standard output, the rest on standard error')
  .addHelpText('after', '\nThe exit code is 1 when a schedule failed.')
  .action(async (options: Options) => {
    try {
      process.exitCode = (await run(options)) ? 0 : 1;
    } catch (error) {
      console.error(error);
      process.exitCode = 1;
    }
    // An abandoned client may still wait for a server that has ended.
    process.exit();
  });

await command.parseAsync();
