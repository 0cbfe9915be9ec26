import { planSchedule, type Size } from './plan.ts';
import type { PlantName } from './plants.ts';
import { runSchedule, type ScheduleReport } from './run-schedule.ts';
import type { Schedule } from './schedule.ts';
import { shrink } from './shrink.ts';
import { Stage } from './stage.ts';

/** Runs that a failing schedule is shrunk with, at most. */
export const SHRINKING_TRIES = 25;

interface SimulationOptions {
  schedules: Iterable<Schedule>;
  planted?: PlantName | undefined;
  /** Goes on after a failure; otherwise the first one ends it. */
  keepGoing: boolean;
  /** How many runs a failing schedule is shrunk with; 0: it is left as it is. */
  shrinkingTries: number;
  /** Ends it after the schedule that is running. */
  signal?: AbortSignal;
  onSchedule?: (report: ScheduleReport) => void;
  /** Told when a schedule is about to be shrunk, which takes a while. */
  onShrinking?: (report: ScheduleReport) => void;
  onFailure?: (failure: Failure) => void;
}

export interface Failure {
  report: ScheduleReport;
  schedule: Schedule;
  /** What is left of it after shrinking, and what that led to. */
  shrunk: { schedule: Schedule; report: ScheduleReport } | null;
}

export interface Summary {
  schedules: number;
  operations: number;
  faults: number;
  /** Kinds of faults that this machine can't do. */
  leftOut: string[];
  /** Milliseconds from the end of the last fault until all was at rest, at worst. */
  slowestRestMs: number;
  seconds: number;
  failures: Failure[];
}

/** The schedules of `count` seeds in a row. */
export function* schedulesFrom(seed: number, count: number, size: Size = 'full'): Generator<Schedule> {
  for (let n = 0; n < count; n++) yield planSchedule(seed + n, size);
}

/** Keeps one stage for many schedules. What a failed one has left behind is no place for another. */
class Stages {
  readonly #planted: PlantName | undefined;
  #stage: Stage | null = null;

  constructor(planted: PlantName | undefined) {
    this.#planted = planted;
  }

  async run(schedule: Schedule): Promise<ScheduleReport> {
    this.#stage ??= await Stage.open({ planted: this.#planted });
    const report = await runSchedule(this.#stage, schedule);
    if (report.violations.length > 0) await this.close();
    return report;
  }

  async close(): Promise<void> {
    const stage = this.#stage;
    this.#stage = null;
    await stage?.close();
  }
}

/** Runs schedules one after the other on a real stack, and shrinks what fails. */
export async function simulate(options: SimulationOptions): Promise<Summary> {
  const { schedules, planted, keepGoing, shrinkingTries, signal, onSchedule, onShrinking, onFailure } =
    options;
  const started = Date.now();
  const stages = new Stages(planted);
  const summary: Summary = {
    schedules: 0,
    operations: 0,
    faults: 0,
    leftOut: [],
    slowestRestMs: 0,
    seconds: 0,
    failures: [],
  };
  try {
    for (const schedule of schedules) {
      if (signal?.aborted) break;
      const report = await stages.run(schedule);
      summary.schedules += 1;
      summary.operations += report.operations;
      summary.faults += report.faults.length;
      summary.leftOut = [...new Set([...summary.leftOut, ...report.leftOut])];
      summary.slowestRestMs = Math.max(summary.slowestRestMs, report.atRestMs ?? 0);
      onSchedule?.(report);
      if (report.violations.length === 0) continue;
      if (shrinkingTries > 0) onShrinking?.(report);
      let shrunk: Failure['shrunk'] = null;
      const fails = async (smaller: Schedule) => {
        if (signal?.aborted) return false;
        const again = await stages.run(smaller);
        if (again.violations.length > 0) shrunk = { schedule: smaller, report: again };
        return again.violations.length > 0;
      };
      await shrink(schedule, fails, shrinkingTries);
      const failure: Failure = { report, schedule, shrunk };
      summary.failures.push(failure);
      onFailure?.(failure);
      if (!keepGoing) break;
    }
  } finally {
    await stages.close();
  }
  summary.seconds = (Date.now() - started) / 1000;
  return summary;
}
