import { join } from 'node:path';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import type { CloneMethod } from '../cloning/create-clone.ts';
import type { Queryable } from '../postgres/connect.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { SNAPSHOT_NAME } from '../snapshots/snapshot-databases.ts';
import { type DiskBytes, type Layout, measureFolder, unionBytes } from '../volumes/disk-bytes.ts';

interface MeasuredHost {
  settings: Pick<AgentSettings, 'PGDATA_DIR'>;
  postgres: Queryable;
  cloneMethod: CloneMethod;
  log: Log;
}

/** A database that can be cloned. */
export interface Source {
  bytes: number;
  /** Null where they are not counted. */
  extents: number | null;
}

const LOOK_EVERY_MS = 5_000;
const MEASURE_EVERY_MS = 600_000;
/** How soon a project is measured again after a change of its rows. */
const CHANGED_EVERY_MS = 45_000;
/** Share of the time that is spent on the projects that change. Measuring one lists the extents of its files. */
const BUSY_SHARE = 0.05;

interface Subject {
  /** ID of a branch or a snapshot. */
  id: string;
  project_id: string;
  oid: string;
  is_branch: boolean;
  /** Differs after any change of rows, catalogs included. */
  changes: string;
}

const SUBJECTS = `
  SELECT branch_id AS id, project_id, pg_database.oid::text, true AS is_branch,
         concat_ws(',', tup_inserted, tup_updated, tup_deleted) AS changes
  FROM branch JOIN pg_database ON datname = database LEFT JOIN pg_stat_database ON datid = pg_database.oid
  UNION ALL
  SELECT snapshot_id, project_id, pg_database.oid::text, false, '' FROM snapshot
  JOIN pg_database ON datname = ${SNAPSHOT_NAME} AND datconnlimit <> -2
  WHERE kind <> 'standing'
  ORDER BY 1`;

type Physical = NonNullable<ProjectMeasurement['physical']>;

/**
 * Measures what each branch and snapshot takes of the disk: every 10 minutes, and its project's after each
 * clone and, within a minute, after a change of rows. That lists every file, so the loop waits until a project
 * has had no further clone for a while, and measures a large project that changes less often.
 */
export class DiskUsage {
  readonly #host: MeasuredHost;
  #known = new Map<string, Subject & DiskBytes>();
  /** By project, with the time of the measurement. */
  #physical = new Map<string, Physical & { at: number }>();
  /** By project: when it was measured, by the monotonic and by the host's clock, and how long that took. */
  #measured = new Map<string, { at: number; on: string; tookMs: number }>();
  /** Oids that the last call saw. */
  #seen: ReadonlySet<string> = new Set();
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(host: MeasuredHost) {
    this.#host = host;
  }

  /** As last measured; without what cannot be measured. */
  of(projectId: string): Pick<ProjectMeasurement, 'disk' | 'disk_measured_at' | 'physical'> {
    const found = [...this.#known.values()].filter(({ project_id }) => project_id === projectId);
    const disk = found.map(({ id, own, shared }) => ({ id, own_bytes: own, shared_bytes: shared }));
    const physical = this.#physical.get(projectId);
    const isRecent = physical && performance.now() - physical.at < 2 * MEASURE_EVERY_MS;
    return {
      ...(disk.length > 0 && { disk }),
      ...(disk.length > 0 && { disk_measured_at: this.#measured.get(projectId)?.on }),
      ...(isRecent && { physical: { bytes: physical.bytes, sizes: physical.sizes } }),
    };
  }

  /** The largest branch or snapshot as last measured; null where none can be measured. */
  largest(): Source | null {
    const sources = [...this.#known.values()].map(({ own, shared, extents }) => ({
      bytes: own + shared,
      extents,
    }));
    return sources.reduce<Source | null>(
      (largest, source) => (largest && largest.bytes >= source.bytes ? largest : source),
      null,
    );
  }

  /**
   * @returns how many databases were measured
   * @param settled leaves out clones that the last call did not see
   */
  async measure({ settled }: { settled: boolean } = { settled: false }): Promise<number> {
    const { rows } = await this.#host.postgres.query<Subject>(SUBJECTS);
    const isRound = performance.now() - this.#measuredAt > MEASURE_EVERY_MS;
    if (isRound) this.#measuredAt = performance.now();
    // A new clone takes part of its source's own bytes.
    const changed = new Set(
      rows.flatMap(({ oid, project_id }) =>
        isRound || (!this.#known.has(oid) && this.#isDue(project_id, 0)) ? [project_id] : [],
      ),
    );
    for (const { oid, project_id, changes } of rows)
      if (this.#known.get(oid)?.changes !== changes && this.#isDue(project_id, CHANGED_EVERY_MS))
        changed.add(project_id);
    const seen = this.#seen;
    this.#seen = new Set(rows.map(({ oid }) => oid));
    if (settled && !isRound)
      for (const { oid, project_id } of rows) if (!seen.has(oid)) changed.delete(project_id);
    const now = new Map<string, Subject & DiskBytes>();
    let measured = 0;
    for (const [projectId, subjects] of Map.groupBy(rows, ({ project_id }) => project_id)) {
      if (!changed.has(projectId)) {
        for (const { oid } of subjects) {
          const known = this.#known.get(oid);
          if (known) now.set(oid, known);
        }
        continue;
      }
      measured += subjects.length;
      for (const [oid, bytes] of await this.#measureProject(projectId, subjects)) now.set(oid, bytes);
    }
    this.#known = now;
    for (const projectId of this.#physical.keys())
      if (!rows.some(({ project_id }) => project_id === projectId)) this.#physical.delete(projectId);
    for (const projectId of this.#measured.keys())
      if (!rows.some(({ project_id }) => project_id === projectId)) this.#measured.delete(projectId);
    return measured;
  }

  /** @param everyMs at least between two measurements of a project */
  #isDue(projectId: string, everyMs: number): boolean {
    const { at = Number.NEGATIVE_INFINITY, tookMs = 0 } = this.#measured.get(projectId) ?? {};
    return performance.now() - at > Math.max(everyMs, tookMs / BUSY_SHARE);
  }

  async #measureProject(
    projectId: string,
    subjects: readonly Subject[],
  ): Promise<Map<string, Subject & DiskBytes>> {
    const { settings, cloneMethod } = this.#host;
    const started = performance.now();
    const on = new Date().toISOString();
    const found = new Map<string, Subject & DiskBytes>();
    const layouts = new Map<string, Layout>();
    for (const subject of subjects) {
      const bytes = await measureFolder(join(settings.PGDATA_DIR, 'base', subject.oid));
      if (!bytes) continue;
      const { own, shared, extents } = bytes;
      found.set(subject.oid, { ...subject, own, shared, extents });
      if (subject.is_branch && bytes.layout) layouts.set(subject.id, bytes.layout);
    }
    const isWhole = layouts.size === subjects.filter(({ is_branch }) => is_branch).length;
    if (isWhole && layouts.size > 0 && cloneMethod === 'reflink')
      this.#physical.set(projectId, {
        bytes: unionBytes([...layouts.values()]),
        sizes: Object.fromEntries([...layouts].map(([id, { size }]) => [id, size])),
        at: performance.now(),
      });
    this.#measured.set(projectId, { at: performance.now(), on, tookMs: performance.now() - started });
    return found;
  }

  run(signal: AbortSignal): Promise<void> {
    return runLoop(() => this.measure({ settled: true }), {
      every: LOOK_EVERY_MS,
      signal,
      log: this.#host.log,
      failed: 'disk.unmeasured',
    });
  }
}
