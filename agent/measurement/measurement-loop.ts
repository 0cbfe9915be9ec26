import { setTimeout as sleep } from 'node:timers/promises';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { AgentSettings } from '../settings.ts';
import { Meter } from './meter.ts';

const LOOK_EVERY_MS = 1_000;

interface Measuring {
  settings: AgentSettings;
  log: (event: string, fields?: Record<string, unknown>) => void;
  report: (measurement: ProjectMeasurement) => void;
  signal: AbortSignal;
}

/**
 * Measures this host every MEASURE_INTERVAL_SECONDS until `signal`. One thing after another: a measurement that
 * takes long puts the next one off. Never throws.
 */
export async function runMeasurementLoop({ settings, log, report, signal }: Measuring): Promise<void> {
  const meter = new Meter(settings, { keeps: true });
  const interval = settings.MEASURE_INTERVAL_SECONDS * 1000;
  const troubles = new Troubles(log);
  for (let next = performance.now(); !signal.aborted; ) {
    try {
      if (performance.now() < next) {
        await meter.sample();
      } else {
        next = Math.max(next + interval, performance.now());
        const { measurements, poolerTrouble } = await meter.measure();
        troubles.note('PgBouncer', poolerTrouble);
        troubles.note('PostgreSQL', null);
        for (const measurement of measurements) report(measurement);
      }
    } catch (error) {
      troubles.note('PostgreSQL', error);
    }
    const wait = Math.min(LOOK_EVERY_MS, next - performance.now());
    await sleep(Math.max(0, wait), undefined, { signal }).catch(() => {});
  }
  await meter.close().catch(() => {});
}

/** Logs what keeps a server from being measured when it begins, changes and ends, not every second. */
class Troubles {
  readonly #log: Measuring['log'];
  readonly #reasons = new Map<string, string>();

  constructor(log: Measuring['log']) {
    this.#log = log;
  }

  note(server: string, trouble: unknown): void {
    const reason = trouble instanceof Error ? trouble.message : String(trouble);
    if (trouble === null) {
      if (this.#reasons.delete(server)) this.#log('measurement.resumed', { server });
    } else if (this.#reasons.get(server) !== reason) {
      this.#reasons.set(server, reason);
      this.#log('measurement.failed', { server, reason });
    }
  }
}
