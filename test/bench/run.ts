import { xfsHindrance } from '../support/xfs.ts';
import { measureConnectionLimits } from './connection-limits.ts';
import { measureCopyOnWrite } from './copy-on-write.ts';
import { measureDeepPages } from './deep-pages.ts';
import { measureEdgeLatency } from './edge-latency.ts';
import { measureEdgeThroughput } from './edge-throughput.ts';
import { measureMeasurement } from './measurement.ts';
import { measureRateLimiter } from './rate-limiter.ts';
import { isMet, type Report, renderReport, writeReport } from './report.ts';
import { writeSummary } from './summary.ts';
import { measureTokenVerification } from './token-verification.ts';
import { measureWorkerBundle } from './worker-bundle.ts';

interface Benchmark {
  /** Why it can't be measured on this machine; null when it can. */
  hindrance: () => string | null;
  measure: (signal: AbortSignal) => Promise<Report>;
}

/** What each benchmark finds is kept in docs/benchmarks under its name. */
const BENCHMARKS: Record<string, Benchmark> = {
  'copy-on-write': { hindrance: xfsHindrance, measure: measureCopyOnWrite },
  measurement: { hindrance: () => null, measure: measureMeasurement },
  'connection-limits': { hindrance: () => null, measure: measureConnectionLimits },
  'deep-pages': { hindrance: () => null, measure: measureDeepPages },
  'edge-latency': { hindrance: () => null, measure: measureEdgeLatency },
  'edge-throughput': { hindrance: () => null, measure: measureEdgeThroughput },
  'rate-limiter': { hindrance: () => null, measure: measureRateLimiter },
  'token-verification': { hindrance: () => null, measure: measureTokenVerification },
  'worker-bundle': { hindrance: () => null, measure: measureWorkerBundle },
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
  writeSummary();
  console.log(renderReport(report));
  return report.goals.every(isMet);
}

/** Those named in the command line; without a name, all. */
const wanted = process.argv.slice(2);
const unknown = wanted.filter((name) => !(name in BENCHMARKS));
if (unknown.length > 0) {
  console.error(`no such benchmark: ${unknown.join(', ')}; there are ${Object.keys(BENCHMARKS).join(', ')}`);
  process.exit(2);
}

let allMet = true;
try {
  for (const [name, benchmark] of Object.entries(BENCHMARKS)) {
    if (wanted.length > 0 && !wanted.includes(name)) continue;
    allMet = (await run(name, benchmark)) && allMet;
  }
} catch (error) {
  console.error(interrupted.signal.aborted ? String(interrupted.signal.reason) : error);
  allMet = false;
}
process.exit(allMet ? 0 : 1);
