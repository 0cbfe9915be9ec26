import { RpcTarget } from 'cloudflare:workers';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { Database } from '../database/database.ts';
import type { Env } from '../env.ts';
import type { Reservation } from '../jobs/reservation.ts';
import { Outbox } from '../mail/outbox.ts';
import { readSettings } from '../settings.ts';
import { type LastMeasurement, MeasurementStore } from './measurement-store.ts';
import { MeasurementStreams, STREAMS_MAX } from './measurement-streams.ts';
import type { Range } from './metric-history.ts';
import type { Point } from './metrics.ts';
import { type Clone, StorageQuota, type StorageStatus } from './storage-quota.ts';
import { readSubject } from './storage-usage.ts';

/** How many missed measurements a stream that is opened again is told at most. */
const TOLD_AGAIN_MAX = 60;

/** What is known by measurement. */
export interface Recorded {
  last: LastMeasurement | null;
  /** Measurements have not come. */
  overdue: boolean;
}

export type StreamOutcome = { stream: ReadableStream } | { failure: Failure };

interface ProjectMonitorOptions {
  env: Env;
  db: Database;
  storage: DurableObjectStorage;
  /** Asks for a call of `sendMail` at that moment (Unix milliseconds), even if this object is gone by then. */
  wakeAt: (moment: number) => void;
  /** Makes the host obey the access on record, now or when it can be reached. */
  applyAccess: (projectId: string, hostId: string) => Promise<unknown>;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * What a project's object knows by measuring, and what follows from it. An `RpcTarget`, so that routes reach it through
 * the coordinator in one trip. Nothing is written for a project that was never measured, whatever id it is asked for.
 */
export class ProjectMonitor extends RpcTarget {
  readonly #options: ProjectMonitorOptions;
  readonly #measurements: MeasurementStore;
  readonly #streams = new MeasurementStreams();
  readonly #keeper: StorageQuota;
  readonly #outbox: Outbox;

  constructor(options: ProjectMonitorOptions) {
    super();
    this.#options = options;
    const { env, storage } = options;
    const settings = () => readSettings(env);
    this.#measurements = new MeasurementStore(storage, settings().MEASURE_INTERVAL_SECONDS);
    this.#outbox = new Outbox({ ...options, settings });
    const lastMeasurement = () => this.#measurements.last();
    this.#keeper = new StorageQuota({ ...options, settings, outbox: this.#outbox, lastMeasurement });
  }

  /**
   * Keeps a measurement, tells who listens, and judges the storage. What follows at the host is not waited for: the
   * link that brought the measurement would have to carry it.
   * @param hostId whose word it is
   */
  async record(measurement: ProjectMeasurement, hostId?: string): Promise<void> {
    const { db, applyAccess, waitUntil } = this.#options;
    const projectId = measurement.project_id;
    const subject = await readSubject(db, projectId);
    // A host speaks for its own projects alone.
    if (!subject || (hostId ?? subject.project.hostId) !== subject.project.hostId) return;
    const event = this.#measurements.record(measurement, subject.branches, Date.now());
    if (!event) return;
    this.#streams.send(projectId, event);
    const verdict = await this.#keeper.evaluate(projectId, subject);
    const { storageState, accessApplied, accessRevision } = subject.project;
    // An object that died after it had written the change left it to the next measurement.
    const isOwed = verdict?.state !== storageState || accessApplied < accessRevision;
    if (verdict && isOwed) waitUntil(applyAccess(projectId, verdict.hostId));
  }

  /** What was measured last. Asked beside D1, so it does not know who asks: the caller keeps it to itself until then. */
  async last(): Promise<Recorded> {
    return { last: this.#measurements.last(), overdue: this.#measurements.isOverdue(Date.now()) };
  }

  /** @param reference the branch's id, or the name it had at the last measurement */
  async series(reference: string, range: Range): Promise<Recorded & { branchId: string; points: Point[] }> {
    const measured = await this.last();
    const ids = measured.last?.ids ?? {};
    // The client's word: `__proto__` would name something that is no id.
    const branchId = (Object.hasOwn(ids, reference) && ids[reference]) || reference;
    return { ...measured, branchId, points: this.#measurements.read(branchId, range) };
  }

  /**
   * @param branchId of the one branch to tell of; null for all
   * @param since moment of the last event that was heard; null for the last measurement
   */
  async stream(
    projectId: string,
    wanted: { branchId: string | null; seconds: number; since: number | null },
  ): Promise<StreamOutcome> {
    const missed = () => {
      const since = wanted.since ?? (this.#measurements.last()?.at ?? 0) - 1;
      return this.#measurements.after(since, TOLD_AGAIN_MAX).map(({ at, branches }) => ({
        at,
        branches: branches.map(([branch_id, values]) => ({ branch_id, ...values })),
      }));
    };
    const stream = await this.#streams.open(projectId, wanted, missed);
    return stream
      ? { stream }
      : { failure: { code: 'STREAM_LIMIT_REACHED', fields: { limit: STREAMS_MAX } } };
  }

  /** Judges anew, after a change of the quota. Resolves when the host obeys, or is known to be away. */
  async evaluate(projectId: string): Promise<StorageStatus | null> {
    const verdict = await this.#keeper.evaluate(projectId);
    if (verdict) await this.#options.applyAccess(projectId, verdict.hostId);
    return verdict;
  }

  extend<T>(
    projectId: string,
    branchId: string,
    record: () => Promise<T>,
  ): Promise<T | { failure: Failure }> {
    return this.#keeper.extend(projectId, branchId, record);
  }

  reserveClone(clone: Clone, reserve: () => Promise<Reservation>): Promise<Reservation> {
    return this.#keeper.reserveClone(clone, reserve);
  }

  sendMail(): Promise<void> {
    return this.#outbox.send(Date.now());
  }
}
