import { aggregate, type BranchValues, type Point, startOfStep } from './metrics.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

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

// Without the number of the row, the table is its own index. Otherwise each point is a row of an index too, which is charged.
const TABLE = `create table if not exists points (
  branch_id text not null,
  step integer not null,
  slot integer not null,
  at integer not null,
  metrics text not null,
  primary key (branch_id, step, slot)
) without rowid`;

interface Row extends Record<string, SqlStorageValue> {
  at: number;
  metrics: string;
}

/**
 * The metric history of a project's branches, in the SQLite database of its object: table `points`, one row per branch,
 * step and slot (the start of the step). Points of a longer step are aggregated from the shorter one by the first
 * measurement after the step; until then the shorter points are read instead. Aggregation and the deletion of
 * expired points run with the first measurement of each hour.
 */
export class MetricHistory {
  readonly #sql: SqlStorage;

  constructor(sql: SqlStorage) {
    this.#sql = sql;
  }

  /**
   * Adds a measurement; the last one of a minute replaces the others. Must be called in a transaction.
   * @param at Unix milliseconds, after `lastAt`, the timestamp of the previous measurement
   * @param onRecord branches that exist; the history of others is deleted
   */
  add(
    at: number,
    branches: ReadonlyMap<string, BranchValues>,
    { lastAt, onRecord }: { lastAt: number | null; onRecord: ReadonlySet<string> },
  ): void {
    this.#sql.exec(TABLE);
    if (lastAt !== null && startOfStep(lastAt, HOUR) < startOfStep(at, HOUR)) {
      for (const branchId of this.#branches()) {
        if (!onRecord.has(branchId)) this.#sql.exec('delete from points where branch_id = ?', branchId);
        else this.#rollUp(branchId, lastAt, at);
      }
    }
    for (const [branchId, values] of branches) this.#write(branchId, MINUTE, { at, values });
  }

  /**
   * The points of one branch, oldest first, at most one per step.
   * @param range its step is at least `finestStep` of its start
   * @param lastAt timestamp of the last measurement; null if there was none
   */
  read(branchId: string, { start, end, step }: Range, lastAt: number | null): Point[] {
    if (lastAt === null) return [];
    const finest = RESOLUTIONS.findLastIndex((resolution) => resolution.step <= step);
    const points: Point[] = [];
    let from = start;
    for (const resolution of RESOLUTIONS.slice(0, finest + 1).reverse()) {
      points.push(...this.#points(branchId, resolution.step, from, end));
      // The slot of the last measurement is not aggregated yet.
      from = Math.max(start, startOfStep(lastAt, resolution.step));
    }
    return aggregate(points, step);
  }

  /** The stored minutes after `since`, oldest first, with the values of each branch. */
  after(
    since: number,
    lastAt: number | null,
    limit: number,
  ): { at: number; branches: [string, BranchValues][] }[] {
    if (lastAt === null || lastAt <= since) return [];
    const from = Math.max(since + 1, lastAt - limit * MINUTE);
    const all = this.#branches().flatMap((branchId) =>
      this.#points(branchId, MINUTE, from, lastAt).map((point) => ({ branchId, ...point })),
    );
    return [...Map.groupBy(all, ({ at }) => at)]
      .sort(([one], [other]) => one - other)
      .slice(-limit)
      .map(([at, found]) => ({ at, branches: found.map(({ branchId, values }) => [branchId, values]) }));
  }

  #branches(): string[] {
    const rows = this.#sql.exec<{ branch_id: string }>('select distinct branch_id from points').toArray();
    return rows.map(({ branch_id }) => branch_id);
  }

  /** Aggregates the longer steps that ended since the last measurement, then deletes expired points. */
  #rollUp(branchId: string, lastAt: number, at: number): void {
    for (const [index, { step }] of RESOLUTIONS.entries()) {
      const finer = RESOLUTIONS[index - 1];
      const slot = startOfStep(lastAt, step);
      if (!finer || slot === startOfStep(at, step)) continue;
      const points = this.#points(branchId, finer.step, slot, slot + step - 1);
      for (const point of aggregate(points, step)) this.#write(branchId, step, point);
    }
    for (const { step, retention } of RESOLUTIONS) {
      const deletion = 'delete from points where branch_id = ? and step = ? and slot < ?';
      this.#sql.exec(deletion, branchId, step, startOfStep(at - retention, step));
    }
  }

  #write(branchId: string, step: number, { at, values }: Point): void {
    this.#sql.exec(
      'insert or replace into points (branch_id, step, slot, at, metrics) values (?, ?, ?, ?, ?)',
      branchId,
      step,
      startOfStep(at, step),
      at,
      JSON.stringify(values),
    );
  }

  #points(branchId: string, step: number, from: number, to: number): Point[] {
    const rows = this.#sql.exec<Row>(
      `select at, metrics from points
       where branch_id = ? and step = ? and slot between ? and ? and at between ? and ? order by slot`,
      branchId,
      step,
      startOfStep(from, step),
      to,
      from,
      to,
    );
    return rows.toArray().map(({ at, metrics }) => ({ at, values: JSON.parse(metrics) as BranchValues }));
  }
}
