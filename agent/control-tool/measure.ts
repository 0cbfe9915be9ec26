import { Command, InvalidArgumentError } from 'commander';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { Meter } from '../measurement/meter.ts';
import { repeat } from '../process/loops.ts';
import { print, printJson, table } from './terminal.ts';
import { readShellSettings } from './with-host.ts';

interface Options {
  stream?: boolean;
  interval?: number;
}

export const measureCommand = () =>
  new Command('measure')
    .description('Measure all branches: size, connections, CPU, transactions, rows')
    .option('--stream', 'repeat until interrupted; prints one JSON object per line and project')
    .option('--interval <seconds>', 'interval of --stream (default: MEASURE_INTERVAL_SECONDS)', readSeconds)
    .addHelpText('after', '\nTotals are those that the agent stored last, plus the usage since then.')
    .action(async ({ stream, interval }: Options, command: Command) => {
      const settings = readShellSettings();
      const meter = new Meter(settings, { stores: false });
      try {
        if (stream) return await streamMeasurements(meter, interval ?? settings.MEASURE_INTERVAL_SECONDS);
        const { measurements } = await meter.measure();
        print(command, { measurements }, table([HEAD, ...measurements.flatMap(rowsOf)]));
      } finally {
        await meter.close();
      }
    });

function readSeconds(text: string): number {
  const seconds = Number(text);
  if (Number.isInteger(seconds) && seconds >= 1 && seconds <= 3600) return seconds;
  throw new InvalidArgumentError('Give a whole number from 1 to 3600.');
}

async function streamMeasurements(meter: Meter, seconds: number): Promise<void> {
  const stop = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stop.abort());
  const { signal } = stop;
  const print = async () => {
    const { measurements } = await meter.measure();
    for (const measurement of measurements) printJson(measurement);
  };
  await repeat(print, seconds * 1000, signal);
}

const HEAD = [
  'BRANCH',
  'BYTES',
  'CONNECTED',
  'CPU',
  'COMMITTED',
  'ROLLED BACK',
  'FETCHED',
  'INSERTED',
  'UPDATED',
  'DELETED',
];

const rowsOf = ({ branches }: ProjectMeasurement): string[][] =>
  branches.map((branch) => [
    branch.branch_id,
    String(branch.database_size_bytes),
    String(branch.active_connections),
    `${branch.cpu_seconds.toFixed(2)} s`,
    String(branch.transactions_committed),
    String(branch.transactions_rolled_back),
    String(branch.rows_fetched),
    String(branch.rows_inserted),
    String(branch.rows_updated),
    String(branch.rows_deleted),
  ]);
