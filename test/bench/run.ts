import { Argument, Command, InvalidArgumentError } from 'commander';
import { xfsHindrance } from '../support/stack/xfs.ts';
import { measureAgedMain } from './aged-main.ts';
import { measureAgedSource } from './aged-source.ts';
import { measureAgentMemory } from './agent-memory.ts';
import { measureBranchBatch } from './branch-batch.ts';
import { measureBranchbenchShape } from './branchbench-shape.ts';
import { measureBusyMain } from './busy-main.ts';
import { measureConnectionLimits } from './connection-limits.ts';
import { measureConsoleGrid } from './console-grid.ts';
import { measureCopies } from './copies.ts';
import { measureCopyOnWrite } from './copy-on-write.ts';
import { measureCpuAccounting } from './cpu-accounting.ts';
import { measureCreationThroughput } from './creation-throughput.ts';
import { measureDeepPages } from './deep-pages.ts';
import { measureDifference } from './difference.ts';
import { measureEdgeLatency } from './edge-latency.ts';
import { measureEdgeThroughput } from './edge-throughput.ts';
import { measureFarClient } from './far-client.ts';
import { measureFirstRun } from './first-run.ts';
import { measureFixtures } from './fixtures.ts';
import { measureFollowing } from './following.ts';
import { measureFollowingLoad } from './following-load.ts';
import { measureGrowth } from './growth.ts';
import { measureHostThroughput } from './host-throughput.ts';
import { measureLargeReplies } from './large-replies.ts';
import { measureLiveMain } from './live-main.ts';
import { measureLoad } from './load.ts';
import { describeMachine } from './machine.ts';
import { measureMasking } from './masking.ts';
import { measureMeasurement } from './measurement.ts';
import { measureMove } from './move.ts';
import { measureNeighbour } from './neighbour.ts';
import { measureNeighbours } from './neighbours.ts';
import { measureNetworkRules } from './network-rules.ts';
import { measurePast } from './past.ts';
import { measureRateLimiter } from './rate-limiter.ts';
import { isMet, type Report, renderReport, writeReport } from './report.ts';
import { measureRowPages } from './row-pages.ts';
import { measureSpares } from './spares.ts';
import { measureSqlOverHttp } from './sql-over-http.ts';
import { writeSummary } from './summary.ts';
import { measureTableList } from './table-list.ts';
import { measureTokenVerification } from './token-verification.ts';
import { measureWayBack } from './way-back.ts';
import { measureWorkerBundle } from './worker-bundle.ts';

interface Benchmark {
  /** @returns why it cannot be measured on this machine, or null */
  hindrance: () => string | null;
  measure: (signal: AbortSignal, options: Options) => Promise<Report>;
  /** It takes long, so it runs only when it is named. */
  byName?: true;
}

interface Options {
  minutes: number;
  moves: number;
  branches: number;
}

/** The results of each benchmark are stored in docs/benchmarks under its name. */
const BENCHMARKS: Record<string, Benchmark> = {
  'copy-on-write': { hindrance: xfsHindrance, measure: measureCopyOnWrite },
  'busy-main': { hindrance: xfsHindrance, measure: measureBusyMain },
  'aged-source': { hindrance: xfsHindrance, measure: measureAgedSource },
  'aged-main': { hindrance: xfsHindrance, measure: measureAgedMain },
  neighbour: { hindrance: xfsHindrance, measure: measureNeighbour },
  neighbours: { hindrance: () => null, measure: measureNeighbours, byName: true },
  'creation-throughput': { hindrance: xfsHindrance, measure: measureCreationThroughput },
  masking: { hindrance: xfsHindrance, measure: measureMasking },
  spares: { hindrance: xfsHindrance, measure: measureSpares },
  'branch-batch': { hindrance: xfsHindrance, measure: measureBranchBatch },
  'branchbench-shape': { hindrance: xfsHindrance, measure: measureBranchbenchShape },
  copies: { hindrance: () => null, measure: measureCopies },
  following: { hindrance: () => null, measure: measureFollowing },
  'following-load': {
    hindrance: () => null,
    measure: (_signal, { minutes }) => measureFollowingLoad(minutes),
    byName: true,
  },
  move: { hindrance: () => null, measure: (signal, { moves }) => measureMove(signal, moves), byName: true },
  growth: {
    hindrance: xfsHindrance,
    measure: (signal, { branches }) => measureGrowth(signal, branches),
    byName: true,
  },
  'live-main': { hindrance: xfsHindrance, measure: measureLiveMain },
  'host-throughput': { hindrance: xfsHindrance, measure: measureHostThroughput },
  'network-rules': { hindrance: () => null, measure: measureNetworkRules },
  'agent-memory': { hindrance: xfsHindrance, measure: measureAgentMemory },
  'cpu-accounting': { hindrance: () => null, measure: measureCpuAccounting },
  load: {
    hindrance: xfsHindrance,
    measure: (signal, { minutes }) => measureLoad(signal, minutes),
    byName: true,
  },
  measurement: { hindrance: () => null, measure: measureMeasurement },
  'connection-limits': { hindrance: () => null, measure: measureConnectionLimits },
  'console-grid': { hindrance: () => null, measure: measureConsoleGrid },
  'deep-pages': { hindrance: () => null, measure: measureDeepPages },
  difference: { hindrance: xfsHindrance, measure: measureDifference },
  'edge-latency': { hindrance: () => null, measure: measureEdgeLatency },
  'edge-throughput': { hindrance: () => null, measure: measureEdgeThroughput },
  'far-client': { hindrance: () => null, measure: (signal) => measureFarClient(signal) },
  'first-run': { hindrance: () => null, measure: measureFirstRun },
  fixtures: { hindrance: xfsHindrance, measure: (signal) => measureFixtures(signal) },
  'large-replies': { hindrance: () => null, measure: measureLargeReplies },
  past: { hindrance: xfsHindrance, measure: measurePast },
  'rate-limiter': { hindrance: () => null, measure: measureRateLimiter },
  'row-pages': { hindrance: () => null, measure: measureRowPages },
  'sql-over-http': { hindrance: () => null, measure: measureSqlOverHttp },
  'table-list': { hindrance: () => null, measure: measureTableList },
  'token-verification': { hindrance: () => null, measure: measureTokenVerification },
  'way-back': { hindrance: xfsHindrance, measure: measureWayBack },
  'worker-bundle': { hindrance: () => null, measure: measureWorkerBundle },
};

const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => interrupted.abort(new Error(`aborted by ${signal}`)));
}

/** @returns whether every goal was met, or there was nothing to measure */
async function run(name: string, { hindrance, measure }: Benchmark, options: Options): Promise<boolean> {
  const reason = hindrance();
  if (reason) {
    console.log(`${name}: skipped, ${reason}`);
    return true;
  }
  console.log(`${name}: measuring, this takes some minutes`);
  const machine = describeMachine();
  const { setting, ...found } = await measure(interrupted.signal, options);
  const report = { ...found, setting: { ...machine, ...setting } };
  writeReport(name, report);
  writeSummary();
  console.log(renderReport(report));
  return report.goals.every(isMet);
}

async function runAll(wanted: string[], options: Options): Promise<boolean> {
  let allMet = true;
  for (const [name, benchmark] of Object.entries(BENCHMARKS)) {
    if (wanted.length > 0 ? !wanted.includes(name) : benchmark.byName) continue;
    allMet = (await run(name, benchmark, options)) && allMet;
  }
  return allMet;
}

function wholeNumber(text: string): number {
  if (!/^[1-9]\d{0,3}$/.test(text)) throw new InvalidArgumentError('It must be a whole number.');
  return Number(text);
}

const names = Object.keys(BENCHMARKS);
const long = names.filter((name) => BENCHMARKS[name]?.byName);
const command = new Command('bench')
  .description('Run benchmarks and write their reports to docs/benchmarks')
  .addArgument(
    new Argument('[names...]', `benchmarks to run; default: all except ${long.join(', ')}`).choices(names),
  )
  .option('--minutes <n>', 'duration of `load`, and of `following-load` for each version', wholeNumber, 10)
  .option('--moves <n>', 'moves of `move`', wholeNumber, 30)
  .option('--branches <n>', 'most branches of `growth`: 100, 300 or 1000', wholeNumber, 1000)
  .addHelpText('after', '\nThe exit code is 1 if a goal is missed.')
  .action(async (wanted: string[], options: Options) => {
    let allMet = false;
    try {
      allMet = await runAll(wanted, options);
    } catch (error) {
      console.error(interrupted.signal.aborted ? String(interrupted.signal.reason) : error);
    }
    process.exit(allMet ? 0 : 1);
  });

await command.parseAsync();
