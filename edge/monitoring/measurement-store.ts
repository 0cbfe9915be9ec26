import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { MeasurementEvent } from './measurement-streams.ts';
import { MetricHistory, type Range } from './metric-history.ts';
import type { BranchValues, Point } from './metrics.ts';

/** What is known of a project's branches by its last measurement. Moments are Unix milliseconds. */
export interface LastMeasurement {
  /** When it was made; see `momentOf`. */
  at: number;
  /** As the host's clock says, and when it came by ours. */
  observedAt: number;
  receivedAt: number;
  /** By branch id. A branch that this measurement left out has the values of the one before. */
  branches: Record<string, BranchValues>;
  /** Ids of the branches that were on record, by name. */
  ids: Record<string, string>;
}

const LAST = 'last_measurement';

/** Who has not been heard for this many intervals has missed two measurements. */
const MISSED_AFTER_INTERVALS = 2.5;
/** A measurement comes at once. What is said to be older comes from a clock that is slow. */
const LATE_MS = 60_000;

/** When it was made by the host's clock, which can put it neither into the future nor far into the past. */
const momentOf = (observedAt: number, now: number): number =>
  Math.min(Math.max(observedAt, now - LATE_MS), now);

/**
 * The measurements of one project, in the storage of its object: the last one (key `last_measurement`) and their
 * history.
 */
export class MeasurementStore {
  readonly #storage: DurableObjectStorage;
  readonly #history: MetricHistory;
  readonly #missedAfterMs: number;

  constructor(storage: DurableObjectStorage, intervalSeconds: number) {
    this.#storage = storage;
    this.#history = new MetricHistory(storage.sql);
    this.#missedAfterMs = intervalSeconds * 1000 * MISSED_AFTER_INTERVALS;
  }

  last(): LastMeasurement | null {
    return this.#storage.kv.get<LastMeasurement>(LAST) ?? null;
  }

  /** Whether more than one measurement in a row has not come. @param now Unix milliseconds */
  isOverdue(now: number): boolean {
    const last = this.last();
    return last === null || now - last.receivedAt > this.#missedAfterMs;
  }

  /**
   * Keeps a measurement; of two that come in the wrong order, or of one that comes twice, the later changes nothing.
   * The host's clock is believed in that until a measurement would be overdue: then it has been set back.
   * @param branches those on record; what is said of others is dropped
   * @returns when it was made and what it says of those branches; null when it is no news
   */
  record(
    measurement: ProjectMeasurement,
    branches: readonly { id: string; branchName: string }[],
    now: number,
  ): MeasurementEvent | null {
    const observedAt = Date.parse(measurement.observed_at);
    const last = this.last();
    const at = momentOf(observedAt, now);
    if (last && (observedAt <= last.observedAt || at <= last.at) && !this.isOverdue(now)) return null;
    const onRecord = new Set(branches.map(({ id }) => id));
    const known = measurement.branches.filter(({ branch_id }) => onRecord.has(branch_id));
    const measured = new Map(known.map(({ branch_id, ...values }) => [branch_id, values]));
    // Whatever the clocks do, no point is written before one that is there.
    const moment = Math.max(at, (last?.at ?? 0) + 1);
    this.#storage.transactionSync(() => {
      this.#history.add(moment, measured, { lastAt: last?.at ?? null, onRecord });
      const before = Object.entries(last?.branches ?? {}).filter(([branchId]) => onRecord.has(branchId));
      const after = [...measured].map(([branchId, values]) => {
        const cache_hit_ratio = values.cache_hit_ratio ?? last?.branches[branchId]?.cache_hit_ratio ?? null;
        return [branchId, { ...values, cache_hit_ratio }] as const;
      });
      this.#storage.kv.put(LAST, {
        at: moment,
        observedAt,
        receivedAt: now,
        branches: Object.fromEntries([...before, ...after]),
        ids: Object.fromEntries(branches.map(({ id, branchName }) => [branchName, id])),
      } satisfies LastMeasurement);
    });
    return { at: moment, branches: known };
  }

  /** Points of one branch, oldest first. @param range its step is at least `finestStep` of its start */
  read(branchId: string, range: Range): Point[] {
    return this.#history.read(branchId, range, this.last()?.at ?? null);
  }

  /** Measurements after the moment, as far as the last minute points tell, at most `limit`; oldest first. */
  after(moment: number, limit: number): ReturnType<MetricHistory['after']> {
    return this.#history.after(moment, this.last()?.at ?? null, limit);
  }
}
