import { setTimeout as sleep } from 'node:timers/promises';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { Log } from '../link/dispatch.ts';
import type { AgentSettings } from '../settings.ts';
import { TroubleLog } from '../trouble-log.ts';
import type { DeadTuples } from './dead-tuples.ts';
import { Meter } from './meter.ts';

const SAMPLE_EVERY_MS = 1_000;

interface Measuring {
  settings: AgentSettings;
  log: Log;
  report: (measurement: ProjectMeasurement) => void;
  deadTuples?: DeadTuples;
  /** Called after each attempt to measure or to sample. */
  onBegun?: () => void;
  signal: AbortSignal;
}

/**
 * Measures this host every MEASURE_INTERVAL_SECONDS until `signal` aborts. A measurement that takes longer delays the
 * next one. Never throws.
 */
export async function runMeasurementLoop(measuring: Measuring): Promise<void> {
  const { settings, log, report, deadTuples, onBegun, signal } = measuring;
  const meter = new Meter(settings, { stores: true, ...(deadTuples && { deadTuples }) });
  const interval = settings.MEASURE_INTERVAL_SECONDS * 1000;
  const reportPostgres = troubleOf('PostgreSQL', log);
  const reportPooler = troubleOf('PgBouncer', log);
  for (let next = performance.now(); !signal.aborted; ) {
    try {
      if (performance.now() < next) {
        await meter.sample();
      } else {
        next = Math.max(next + interval, performance.now());
        const { measurements, poolerTrouble } = await meter.measure();
        reportPooler(poolerTrouble);
        reportPostgres(null);
        for (const measurement of measurements) report(measurement);
      }
    } catch (error) {
      reportPostgres(error);
    }
    onBegun?.();
    const wait = Math.min(SAMPLE_EVERY_MS, next - performance.now());
    await sleep(Math.max(0, wait), undefined, { signal }).catch(() => {});
  }
  onBegun?.();
  await meter.close().catch(() => {});
}

/** Logs why a server cannot be measured, and when it can be again. */
function troubleOf(server: string, log: Log): (trouble: unknown) => void {
  const troubles = new TroubleLog(log);
  return (trouble) => {
    if (trouble !== null) {
      troubles.report('measurement.failed', server, trouble, { server });
    } else if (troubles.clear(server)) {
      log('measurement.resumed', { server });
    }
  };
}
