import { planSchedule, type Size } from './plan.ts';
import type { PlantName } from './plants.ts';
import { runSchedule, type ScheduleReport } from './run-schedule.ts';
import { type Form, ONE_HOST, type Schedule } from './schedule.ts';
import { shrink } from './shrink.ts';
import { Stage } from './stage.ts';

/** Maximum number of runs to shrink a failing schedule. */
export const SHRINKING_TRIES = 25;

interface SimulationOptions {
  schedules: Iterable<Schedule>;
  /** Number of schedules that run concurrently, each on a stack of its own. Default 1. */
  stacks?: number;
  planted?: PlantName | undefined;
  /** Continues after a failure; otherwise the first one ends the simulation. */
  keepGoing: boolean;
  /** Maximum number of runs to shrink a failing schedule; 0 disables shrinking. */
  shrinkingTries: number;
  /** Ends the simulation after the current schedule. */
  signal?: AbortSignal;
  onSchedule?: (report: ScheduleReport) => void;
  /** Called before a schedule is shrunk, which takes a while. */
  onShrinking?: (report: ScheduleReport) => void;
  onFailure?: (failure: Failure) => void;
}

export interface Failure {
  report: ScheduleReport;
  schedule: Schedule;
  shrunk: { schedule: Schedule; report: ScheduleReport } | null;
}

export interface Summary {
  schedules: number;
  operations: number;
  sparesTaken: number;
  standingSnapshots: number;
  moves: number;
  faults: number;
  /** Kinds of faults that this machine does not support. */
  leftOut: string[];
  /** Longest time from the end of the last fault to convergence, in milliseconds. */
  slowestRestMs: number;
  seconds: number;
  failures: Failure[];
}

/** Yields the schedules of `count` consecutive seeds. */
export function* schedulesFrom(
  seed: number,
  count: number,
  size: Size = 'full',
  form: Form = ONE_HOST,
): Generator<Schedule> {
  for (let n = 0; n < count; n++) yield planSchedule(seed + n, size, form);
}

/**
 * Reuses one stage for many schedules. A failed schedule closes it, because its leftovers would affect the
 * next.
 */
class Stages {
  readonly #planted: PlantName | undefined;
  #stage: Stage | null = null;

  constructor(planted: PlantName | undefined) {
    this.#planted = planted;
  }

  async run(schedule: Schedule): Promise<ScheduleReport> {
    const { hosts, standby } = schedule;
    const { form } = this.#stage ?? {};
    if (form && (form.hosts !== hosts || form.standby !== standby)) await this.close();
    this.#stage ??= await Stage.open({ planted: this.#planted, form: { hosts, standby } });
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

/** Runs schedules on real stacks, and shrinks the failing ones. */
export async function simulate(options: SimulationOptions): Promise<Summary> {
  const started = Date.now();
  const simulation = new Simulation(options);
  const workers = await Promise.allSettled(
    Array.from({ length: options.stacks ?? 1 }, () => simulation.work()),
  );
  for (const worker of workers) if (worker.status === 'rejected') throw worker.reason;
  simulation.summary.seconds = (Date.now() - started) / 1000;
  return simulation.summary;
}

class Simulation {
  readonly summary: Summary = {
    schedules: 0,
    operations: 0,
    sparesTaken: 0,
    standingSnapshots: 0,
    moves: 0,
    faults: 0,
    leftOut: [],
    slowestRestMs: 0,
    seconds: 0,
    failures: [],
  };
  readonly #options: SimulationOptions;
  /** What no stack has taken yet. */
  readonly #schedules: Iterator<Schedule>;
  /** A stack could not be started or ended. */
  #isBroken = false;

  constructor(options: SimulationOptions) {
    this.#options = options;
    this.#schedules = options.schedules[Symbol.iterator]();
  }

  /**
   * Takes one schedule after the other until none is left.
   * @throws Error after which the other workers end, too
   */
  async work(): Promise<void> {
    const stages = new Stages(this.#options.planted);
    try {
      while (!this.#isOver) {
        const { value: schedule, done } = this.#schedules.next();
        if (done) break;
        const report = await stages.run(schedule);
        this.#count(report);
        if (report.violations.length > 0) await this.#shrink(stages, schedule, report);
      }
    } catch (error) {
      this.#isBroken = true;
      throw error;
    } finally {
      await stages.close();
    }
  }

  get #isOver(): boolean {
    const { signal, keepGoing } = this.#options;
    return this.#isBroken || Boolean(signal?.aborted) || (this.summary.failures.length > 0 && !keepGoing);
  }

  #count(report: ScheduleReport): void {
    const { summary } = this;
    summary.schedules += 1;
    summary.operations += report.operations;
    summary.sparesTaken += report.sparesTaken;
    summary.standingSnapshots += report.standingSnapshots;
    summary.moves += report.moves;
    summary.faults += report.faults.length;
    summary.leftOut = [...new Set([...summary.leftOut, ...report.leftOut])];
    summary.slowestRestMs = Math.max(summary.slowestRestMs, report.atRestMs ?? 0);
    this.#options.onSchedule?.(report);
  }

  async #shrink(stages: Stages, schedule: Schedule, report: ScheduleReport): Promise<void> {
    const { shrinkingTries, signal, onShrinking, onFailure } = this.#options;
    const failure: Failure = { report, schedule, shrunk: null };
    if (shrinkingTries > 0) onShrinking?.(report);
    const fails = async (smaller: Schedule) => {
      if (signal?.aborted) return false;
      const again = await stages.run(smaller);
      if (again.violations.length > 0) failure.shrunk = { schedule: smaller, report: again };
      return again.violations.length > 0;
    };
    await shrink(schedule, fails, shrinkingTries);
    this.summary.failures.push(failure);
    onFailure?.(failure);
  }
}
