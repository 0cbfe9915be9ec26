import { xfsHindrance } from '../support/xfs.ts';
import { measureCopyOnWrite } from './copy-on-write.ts';
import { measureMeasurement } from './measurement.ts';
import { isMet, type Report, renderReport, writeReport } from './report.ts';

interface Benchmark {
  /** Why it can't be measured on this machine; null when it can. */
  hindrance: () => string | null;
  measure: (signal: AbortSignal) => Promise<Report>;
}

/** What each benchmark finds is kept in docs/benchmarks under its name. */
const BENCHMARKS: Record<string, Benchmark> = {
  'copy-on-write': { hindrance: xfsHindrance, measure: measureCopyOnWrite },
  measurement: { hindrance: () => null, measure: measureMeasurement },
};

const interrupted = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM'] as const) {
  process.on(signal, () => interrupted.abort(new Error(`ended by ${signal}`)));
}

/** @returns whether every goal was met, or there was nothing to measure */
async function run(name: string, { hindrance, measure }: Benchmark): Promise<boolean> {
  const reason = hindrance();
  if (reason) {
    console.log(`${name}: skipped, ${reason}`);
    return true;
  }
  console.log(`${name}: measuring, this takes a minute or two`);
  const report = await measure(interrupted.signal);
  writeReport(name, report);
  console.log(renderReport(report));
  return report.goals.every(isMet);
}

let allMet = true;
try {
  for (const [name, benchmark] of Object.entries(BENCHMARKS)) {
    allMet = (await run(name, benchmark)) && allMet;
  }
} catch (error) {
  console.error(interrupted.signal.aborted ? String(interrupted.signal.reason) : error);
  allMet = false;
}
process.exit(allMet ? 0 : 1);
