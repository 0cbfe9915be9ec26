import { aggregate, type BranchValues, type Point, startOfStep } from './metrics.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Minutes are stored together for this time; a divisor of an hour. */
const SPAN = 10 * MINUTE;
/** Bounds a stored value, which may have 2 MB, with 500 branches; a point has less than 800 bytes. */
const RECENT_POINTS_MAX = 1500;

/** The time between stored points and their retention, in milliseconds; the finest first. */
const RESOLUTIONS = [
  { step: MINUTE, retention: DAY },
  { step: HOUR, retention: 30 * DAY },
  { step: DAY, retention: 365 * DAY },
] as const;

/** A range of points; `start` and `end` are inclusive, in Unix milliseconds. */
export interface Range {
  start: number;
  end: number;
  /** Milliseconds. */
  step: number;
}

/** The shortest step of which points are stored since `start`. */
export const finestStep = (start: number, now: number): number =>
  RESOLUTIONS.find(({ retention }) => start >= now - retention)?.step ?? DAY;

/** The points of branches, by branch ID; those of a branch are in ascending order. */
export type PointsByBranch = Record<string, Point[]>;

/**
 * Without the number of the row, a table is its own index. Otherwise each row is a row of an index too, which
 * is charged.
 */
const TABLE = `
  create table samples (
    step integer not null,
    first_at integer not null,
    last_at integer not null,
    metrics text not null,
    primary key (step, first_at)
  ) without rowid`;

/** Parameters: step, from, to, and the ID of a branch with its path, which are null for all branches. */
const SAMPLES = `
  select iif(?4 is null, metrics, json_object(?4, json_extract(metrics, ?5))) as metrics from samples
  where step = ?1 and last_at >= ?2 and first_at <= ?3 and (?4 is null or json_type(metrics, ?5) is not null)
  order by first_at`;

/** The values of a branch in a row. */
const pathOf = (branchId: string) => `$."${branchId}"`;

interface MeasuredMinute {
  at: number;
  branches: [branchId: string, values: BranchValues][];
}

/** The end of the history. */
interface Head {
  /** Timestamp of the last measurement. */
  at: number;
  /** Minutes that are not in the table yet, of all branches with a history; left out: none are. */
  recent?: PointsByBranch;
}

interface Added {
  /** The minutes of the next head. */
  recent: PointsByBranch;
  /** The tables have changed: the next head has to be stored in the same transaction. */
  isWritten: boolean;
}

/**
 * The metric history of a project's branches, in the SQLite database of its object. Each row that is written
 * is charged, so a row has all branches: ten minutes of them, or fewer of a project with many branches; one
 * hour; or one day. The minutes since then are in the head, as an idle object loses its memory after ten
 * seconds. Points of a longer step are aggregated from the shorter one
 * by the first measurement after the step; until then the shorter points are read instead. Aggregation and
 * the deletion of expired points run with the first measurement of each hour.
 */
export class MetricHistory {
  readonly #sql: SqlStorage;

  constructor(sql: SqlStorage) {
    this.#sql = sql;
  }

  /**
   * Adds a measurement. Its values replace those of an earlier measurement of the same minute. Must be called
   * in a transaction.
   * @param at Unix milliseconds, after the head
   * @param onRecord branches that exist; the history of others is deleted
   */
  add(
    at: number,
    branches: ReadonlyMap<string, BranchValues>,
    { head, onRecord }: { head: Head | null; onRecord: ReadonlySet<string> },
  ): Added {
    this.#createTable();
    let recent = head?.recent ?? withoutPoints(this.#branchIds());
    const isNextSpan = head !== null && startOfStep(head.at, SPAN) < startOfStep(at, SPAN);
    if (isNextSpan) {
      this.#write(MINUTE, recent);
      recent = withoutPoints(Object.keys(recent));
    }
    if (head && startOfStep(head.at, HOUR) < startOfStep(at, HOUR)) {
      for (const branchId of Object.keys(recent)) if (!onRecord.has(branchId)) this.#forget(branchId);
      recent = withoutPoints(Object.keys(recent).filter((branchId) => onRecord.has(branchId)));
      this.#rollUp(head.at, at);
    }
    const added = withMinute(recent, at, branches);
    if (Object.values(added).reduce((sum, { length }) => sum + length, 0) <= RECENT_POINTS_MAX)
      return { recent: added, isWritten: isNextSpan };
    this.#write(MINUTE, recent);
    return { recent: withMinute(withoutPoints(Object.keys(recent)), at, branches), isWritten: true };
  }

  /**
   * The points of one branch, oldest first, at most one per step.
   * @param range its step is at least `finestStep` of its start
   * @param head null if there was no measurement
   */
  read(branchId: string, { start, end, step }: Range, head: Head | null): Point[] {
    if (!head) return [];
    this.#createTable();
    const finest = RESOLUTIONS.findLastIndex((resolution) => resolution.step <= step);
    const points: Point[] = [];
    let from = start;
    for (const resolution of RESOLUTIONS.slice(0, finest + 1).reverse()) {
      points.push(...(this.#points(resolution.step, from, end, head, branchId).get(branchId) ?? []));
      // The step of the last measurement is not aggregated yet.
      from = Math.max(start, startOfStep(head.at, resolution.step));
    }
    return aggregate(points, step);
  }

  /** The stored minutes after `since`, oldest first, with the values of each branch. */
  after(since: number, head: Head | null, limit: number): MeasuredMinute[] {
    if (!head || head.at <= since) return [];
    this.#createTable();
    const from = Math.max(since + 1, head.at - limit * MINUTE);
    const points = [...this.#points(MINUTE, from, head.at, head)].flatMap(([branchId, found]) =>
      found.map((point) => ({ branchId, ...point })),
    );
    return [...Map.groupBy(points, ({ at }) => startOfStep(at, MINUTE))]
      .sort(([one], [other]) => one - other)
      .slice(-limit)
      .map(([, measured]) => ({
        at: Math.max(...measured.map(({ at }) => at)),
        branches: Object.entries(
          Object.fromEntries(measured.map(({ branchId, values }) => [branchId, values])),
        ),
      }));
  }

  /** Each call looks, because the deletion of the project and an undone transaction remove the table. */
  #createTable(): void {
    const [known] = this.#sql.exec("select 1 from sqlite_master where name = 'samples'").toArray();
    if (!known) this.#sql.exec(TABLE);
  }

  /** Aggregates the longer steps that ended since the last measurement, then deletes expired points. */
  #rollUp(lastAt: number, at: number): void {
    const aggregated = (points: ReadonlyMap<string, Point[]>, step: number) =>
      Object.fromEntries([...points].map(([branchId, found]) => [branchId, aggregate(found, step)]));
    const hour = startOfStep(lastAt, HOUR);
    this.#write(HOUR, aggregated(this.#points(MINUTE, hour, hour + HOUR - 1), HOUR));
    const day = startOfStep(lastAt, DAY);
    if (day < startOfStep(at, DAY)) this.#write(DAY, aggregated(this.#points(HOUR, day, day + DAY - 1), DAY));
    for (const { step, retention } of RESOLUTIONS) {
      const oldest = startOfStep(at - retention, step);
      this.#sql.exec('delete from samples where step = ? and last_at < ?', step, oldest);
    }
  }

  /** The branches with a history, for a head that was lost. */
  #branchIds(): string[] {
    const ids = this.#sql.exec<{ id: string }>('select distinct key as id from samples, json_each(metrics)');
    return ids.toArray().map(({ id }) => id);
  }

  #forget(branchId: string): void {
    this.#sql.exec(
      'update samples set metrics = json_remove(metrics, ?1) where json_type(metrics, ?1) is not null',
      pathOf(branchId),
    );
  }

  #write(step: number, points: PointsByBranch): void {
    const measured = Object.entries(points).filter(([, found]) => found.length > 0);
    const times = measured.flatMap(([, found]) => found.map(({ at }) => at));
    if (times.length === 0) return;
    this.#sql.exec(
      'insert or replace into samples (step, first_at, last_at, metrics) values (?, ?, ?, ?)',
      step,
      Math.min(...times),
      Math.max(...times),
      JSON.stringify(Object.fromEntries(measured)),
    );
  }

  /** @param from and `to`: Unix milliseconds, inclusive @param branchId default: all branches */
  #points(step: number, from: number, to: number, head?: Head, branchId?: string): Map<string, Point[]> {
    const wanted = [step, from, to, branchId ?? null, branchId === undefined ? null : pathOf(branchId)];
    const samples = this.#sql
      .exec<{ metrics: string }>(SAMPLES, ...wanted)
      .toArray()
      .flatMap(({ metrics }) => Object.entries(JSON.parse(metrics) as PointsByBranch));
    const recent = step === MINUTE ? Object.entries(head?.recent ?? {}) : [];
    const found = new Map<string, Point[]>();
    for (const [id, points] of [...samples, ...recent]) {
      if (branchId !== undefined && id !== branchId) continue;
      const inRange = points.filter(({ at }) => at >= from && at <= to);
      if (inRange.length > 0) found.set(id, [...(found.get(id) ?? []), ...inRange]);
    }
    for (const points of found.values()) points.sort((one, other) => one.at - other.at);
    return found;
  }
}

const withoutPoints = (branchIds: readonly string[]): PointsByBranch =>
  Object.fromEntries(branchIds.map((branchId) => [branchId, []]));

/** The points with a measurement, which replaces that of the same minute. */
function withMinute(
  points: PointsByBranch,
  at: number,
  measured: ReadonlyMap<string, BranchValues>,
): PointsByBranch {
  const minute = startOfStep(at, MINUTE);
  const added = [...measured].map(([branchId, values]): [string, Point[]] => [
    branchId,
    [...(points[branchId] ?? []).filter((point) => point.at < minute), { at, values }],
  ]);
  return { ...points, ...Object.fromEntries(added) };
}
