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

interface Subject {
  /** ID of a branch or a snapshot. */
  id: string;
  project_id: string;
  oid: string;
  is_branch: boolean;
}

const SUBJECTS = `
  SELECT branch_id AS id, project_id, pg_database.oid::text, true AS is_branch FROM branch JOIN pg_database ON datname = database
  UNION ALL
  SELECT snapshot_id, project_id, pg_database.oid::text, false FROM snapshot
  JOIN pg_database ON datname = ${SNAPSHOT_NAME} AND datconnlimit <> -2
  ORDER BY 1`;

type Physical = NonNullable<ProjectMeasurement['physical']>;

/**
 * Measures what each branch and snapshot takes of the disk: every 10 minutes, and its project's after each
 * clone. That lists every file, so the loop waits until a project has had no further clone for a while.
 */
export class DiskUsage {
  readonly #host: MeasuredHost;
  #known = new Map<string, Subject & DiskBytes>();
  /** By project, with the time of the measurement. */
  #physical = new Map<string, Physical & { at: number }>();
  /** Oids that the last call saw. */
  #seen: ReadonlySet<string> = new Set();
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(host: MeasuredHost) {
    this.#host = host;
  }

  /** As last measured; without what cannot be measured. */
  of(projectId: string): Pick<ProjectMeasurement, 'disk' | 'physical'> {
    const found = [...this.#known.values()].filter(({ project_id }) => project_id === projectId);
    const disk = found.map(({ id, own, shared }) => ({ id, own_bytes: own, shared_bytes: shared }));
    const physical = this.#physical.get(projectId);
    const isRecent = physical && performance.now() - physical.at < 2 * MEASURE_EVERY_MS;
    return {
      ...(disk.length > 0 && { disk }),
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
      rows.flatMap(({ oid, project_id }) => (isRound || !this.#known.has(oid) ? [project_id] : [])),
    );
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
    return measured;
  }

  async #measureProject(
    projectId: string,
    subjects: readonly Subject[],
  ): Promise<Map<string, Subject & DiskBytes>> {
    const { settings, cloneMethod } = this.#host;
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
