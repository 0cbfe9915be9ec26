import { RpcTarget } from 'cloudflare:workers';
import type { Failure } from '../../shared/failures.ts';
import type { ProjectMeasurement, ProjectSizes } from '../../shared/measurement.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { sharedNextFlight } from '../../shared/single-flight.ts';
import type { Database } from '../database/database.ts';
import type { StreamClient, StreamGate } from '../events/stream-admission.ts';
import type { CallHost } from '../hosts/host-client.ts';
import { jobError, publicFailure } from '../jobs/saga.ts';
import { storeDiskBytes } from './disk-bytes.ts';
import { MeasurementStreams } from './measurement-streams.ts';
import type { MeasurementStore, Recorded } from './measurements.ts';
import type { Range } from './metric-history.ts';
import type { MetricName, MetricValue, Point } from './metrics.ts';
import { readSubject, type StorageQuota, type StorageStatus, type StorageSubject } from './storage-quota.ts';

/** How many missed measurements a reopened stream replays at most. */
const REPLAYED_MAX = 60;

interface ProjectMonitorOptions {
  env: StreamGate['env'];
  db: Database;
  measurements: MeasurementStore;
  quota: StorageQuota;
  callHost: (hostId: string) => CallHost;
  /** Applies the stored access on the host, now or when it is reachable again. */
  applyAccess: () => Promise<unknown>;
  waitUntil: (work: Promise<unknown>) => void;
}

/**
 * The measurements of one project and their consequences. An `RpcTarget`, so that routes reach it through the
 * coordinator in one trip. It writes nothing for a project without measurements, so a made-up ID leaves no
 * storage.
 */
export class ProjectMonitor extends RpcTarget implements ProjectMonitorRpc {
  readonly #options: ProjectMonitorOptions;
  readonly #streams: MeasurementStreams;
  #storedDisk = '';

  constructor(options: ProjectMonitorOptions) {
    super();
    const { env, db } = options;
    this.#options = options;
    this.#streams = new MeasurementStreams({ env, db, action: 'metrics.read' });
  }

  /**
   * Stores a measurement, sends it to open streams and evaluates the storage. It does not wait for changes on
   * the host, because those need the link that delivered the measurement.
   * @param hostId the host that sent it
   * @param kept the head that its link has kept; left out: it keeps none
   * @returns the head that the link is to keep; null: without a change
   */
  async record(
    measurement: ProjectMeasurement,
    hostId?: string,
    kept?: string | null,
  ): Promise<string | null> {
    const { db, measurements } = this.#options;
    const projectId = measurement.project_id;
    const subject = await readSubject(db, projectId);
    // A host may only report its own projects.
    if (!subject || (hostId ?? subject.project.hostId) !== subject.project.hostId) return null;
    await measurements.load(kept);
    const keptBy = kept === undefined ? undefined : hostId;
    const event = measurements.record(measurement, subject.branches, Date.now(), keptBy);
    if (!event) return null;
    this.#streams.send(projectId, event);
    try {
      await this.#storeDisk(measurement);
      await this.#evaluate(subject);
    } catch (error) {
      // The link does not get it.
      measurements.storeHead();
      throw error;
    }
    // With what has come in the meantime, because responses may overtake each other.
    return measurements.head();
  }

  /**
   * Evaluates the storage by sizes that are newer than the last measurement.
   * @param hostId the host that sent them
   */
  async recordSizes({ project_id, sizes }: ProjectSizes, hostId?: string): Promise<void> {
    const { db, quota, measurements } = this.#options;
    const [subject] = await Promise.all([readSubject(db, project_id), measurements.load()]);
    if (!subject || (hostId ?? subject.project.hostId) !== subject.project.hostId) return;
    quota.recordSizes(subject, sizes);
    await this.#evaluate(subject);
  }

  /**
   * Asks the host for the present sizes of the project's databases; the last measurement can be a minute old.
   * It counts where the agent is of a release that cannot be asked.
   */
  async readSizes(projectId: string, hostId: string): Promise<Result<ProjectSizes, Failure>> {
    try {
      return ok(await this.#options.callHost(hostId)('project.size', { project_id: projectId }));
    } catch (error) {
      const failure = publicFailure(jobError(error));
      return failure.code === 'HOST_UPGRADE_REQUIRED'
        ? ok({ project_id: projectId, sizes: {} })
        : fail(failure);
    }
  }

  /**
   * Evaluates the storage after a deletion. While the host is away, the known sizes of the other branches
   * count. Deletions that come during one share the next.
   */
  readonly evaluateNow = sharedNextFlight(async (projectId: string, hostId: string): Promise<void> => {
    const sized = await this.readSizes(projectId, hostId);
    await this.recordSizes(sized.ok ? sized.value : { project_id: projectId, sizes: {} });
  });

  /** The host measures seldom and reports often, so the same values are not written again. */
  async #storeDisk({ project_id, disk }: ProjectMeasurement): Promise<void> {
    const reported = JSON.stringify(disk);
    if (!disk || reported === this.#storedDisk) return;
    await storeDiskBytes(this.#options.db, project_id, disk);
    this.#storedDisk = reported;
  }

  async #evaluate(subject: StorageSubject): Promise<void> {
    const { quota, applyAccess, waitUntil } = this.#options;
    const { id, storageState, accessApplied, accessRevision } = subject.project;
    const status = await quota.evaluate(id, subject);
    // An object that was lost after it had stored the change leaves its application to the next measurement.
    const isPending = status?.state !== storageState || accessApplied < accessRevision;
    if (status && isPending) waitUntil(applyAccess());
  }

  /**
   * Routes call it concurrently with the permission check, so they must not use the result before that
   * succeeds.
   */
  async last(): Promise<Recorded> {
    const { measurements, quota } = this.#options;
    await measurements.load();
    const last = measurements.last();
    const { cloneBytes } = quota;
    return { last, sizes: quota.sizesOf(last), cloneBytes, overdue: measurements.isOverdue(Date.now()) };
  }

  async series(reference: string, range: Range): Promise<Recorded & { branchId: string; points: Point[] }> {
    const recorded = await this.last();
    const ids = recorded.last?.ids ?? {};
    // The reference is the client's: `__proto__` would be an inherited property and no ID.
    const branchId = (Object.hasOwn(ids, reference) && ids[reference]) || reference;
    return { ...recorded, branchId, points: this.#options.measurements.read(branchId, range) };
  }

  async metricOfBranches(
    metric: MetricName,
    range: Range,
  ): Promise<Recorded & { values: Map<string, MetricValue[]> }> {
    const { measurements } = this.#options;
    const recorded = await this.last();
    const ofMetric = ({ at, values }: Point): MetricValue[] => {
      const value = values[metric];
      return value == null ? [] : [{ at, value }];
    };
    const points = [...measurements.readEach(Object.keys(recorded.last?.branches ?? {}), range)];
    return { ...recorded, values: new Map(points.map(([id, found]) => [id, found.flatMap(ofMetric)])) };
  }

  async stream(
    projectId: string,
    client: StreamClient,
    wanted: { branchId: string | null; seconds: number; since: number | null },
  ): Promise<Result<ReadableStream, Failure>> {
    const { measurements } = this.#options;
    await measurements.load();
    const missed = () => {
      const since = wanted.since ?? (measurements.last()?.at ?? 0) - 1;
      return measurements.after(since, REPLAYED_MAX).map(({ at, branches }) => ({
        at,
        branches: branches.map(([branch_id, values]) => ({ branch_id, ...values })),
      }));
    };
    return this.#streams.open(projectId, client, wanted, missed);
  }

  /** Resolves when the resulting access is in effect on the host, or the host is known to be unavailable. */
  async evaluate(projectId: string): Promise<StorageStatus | null> {
    const { quota, applyAccess } = this.#options;
    const status = await quota.evaluate(projectId);
    if (status) await applyAccess();
    return status;
  }
}

/** The measurements of one project, reached through its coordinator. */
export interface ProjectMonitorRpc extends Rpc.RpcTargetBranded {
  last(): Promise<Recorded>;
  /** @param reference the branch's ID, or its name at the last measurement */
  series(reference: string, range: Range): Promise<Recorded & { branchId: string; points: Point[] }>;
  /**
   * The values of one metric of each branch that was measured last, with their times in Unix milliseconds.
   */
  metricOfBranches(
    metric: MetricName,
    range: Range,
  ): Promise<Recorded & { values: Map<string, MetricValue[]> }>;
  /** @param wanted `branchId` null: all branches; `since` null: start with the last measurement */
  stream(
    projectId: string,
    client: StreamClient,
    wanted: { branchId: string | null; seconds: number; since: number | null },
  ): Promise<Result<ReadableStream, Failure>>;
  /** @param hostId the host that sent the sizes */
  recordSizes(sizes: ProjectSizes, hostId?: string): Promise<void>;
  /** Evaluates the storage after a change of the quota. @returns null without a project or a measurement */
  evaluate(projectId: string): Promise<StorageStatus | null>;
}
