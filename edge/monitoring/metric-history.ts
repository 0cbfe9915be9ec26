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

/**
 * Without the number of the row, a table is its own index. Otherwise each point is a row of an index too,
 * which is charged.
 */
const TABLES = `
  create table if not exists points (
    branch_id text not null,
    step integer not null,
    slot integer not null,
    at integer not null,
    metrics text not null,
    primary key (branch_id, step, slot)
  ) without rowid;
  create table minutes (
    slot integer primary key,
    at integer not null,
    metrics text not null
  );
  -- An earlier release had a row per branch and minute.
  insert into minutes
    select slot, max(at), json_group_object(branch_id, json(metrics)) from points where step = ${MINUTE} group by slot;
  delete from points where step = ${MINUTE}`;

interface Row extends Record<string, SqlStorageValue> {
  at: number;
  metrics: string;
}

/** The values of a branch in the metrics of a minute. */
const pathOf = (branchId: string) => `$."${branchId}"`;

interface MeasuredMinute {
  at: number;
  branches: [branchId: string, values: BranchValues][];
}

/**
 * The metric history of a project's branches, in the SQLite database of its object. Each row that is written
 * is charged, so a minute is one row for all branches (table `minutes`); hours and days are one row per
 * branch (table `points`). Points of a longer step are aggregated from the shorter one by the first
 * measurement after the step; until then the shorter points are read instead. Aggregation and the deletion of
 * expired points run with the first measurement of each hour.
 */
export class MetricHistory {
  readonly #sql: SqlStorage;

  constructor(sql: SqlStorage) {
    this.#sql = sql;
  }

  /**
   * Adds a measurement. Its values replace those of an earlier measurement of the same minute. Must be called
   * in a transaction.
   * @param at Unix milliseconds, after `lastAt`, the timestamp of the previous measurement
   * @param onRecord branches that exist; the history of others is deleted
   */
  add(
    at: number,
    branches: ReadonlyMap<string, BranchValues>,
    { lastAt, onRecord }: { lastAt: number | null; onRecord: ReadonlySet<string> },
  ): void {
    const [known] = this.#sql.exec("select 1 from sqlite_master where name = 'minutes'").toArray();
    if (!known) this.#sql.exec(TABLES);
    if (lastAt !== null && startOfStep(lastAt, HOUR) < startOfStep(at, HOUR))
      this.#rollUp(lastAt, at, onRecord);
    const slot = startOfStep(at, MINUTE);
    const [earlier] = lastAt !== null && lastAt >= slot ? this.#minutes(slot, at) : [];
    const values = Object.fromEntries([...(earlier?.branches ?? []), ...branches]);
    this.#sql.exec(
      'insert or replace into minutes (slot, at, metrics) values (?, ?, ?)',
      slot,
      at,
      JSON.stringify(values),
    );
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
  after(since: number, lastAt: number | null, limit: number): MeasuredMinute[] {
    if (lastAt === null || lastAt <= since) return [];
    return this.#minutes(Math.max(since + 1, lastAt - limit * MINUTE), lastAt).slice(-limit);
  }

  /** Aggregates the longer steps that ended since the last measurement, then deletes expired points. */
  #rollUp(lastAt: number, at: number, onRecord: ReadonlySet<string>): void {
    const hour = startOfStep(lastAt, HOUR);
    const minutes = this.#minutes(hour, hour + HOUR - 1).flatMap(({ at: measuredAt, branches }) =>
      branches.map(([branchId, values]) => ({ branchId, at: measuredAt, values })),
    );
    const ofHour = Map.groupBy(minutes, ({ branchId }) => branchId);
    const day = startOfStep(lastAt, DAY);
    const stored = this.#sql.exec<{ branch_id: string }>('select distinct branch_id from points').toArray();
    for (const branchId of new Set([...ofHour.keys(), ...stored.map(({ branch_id }) => branch_id)]))
      if (!onRecord.has(branchId)) this.#forget(branchId);
    for (const branchId of onRecord) {
      for (const point of aggregate(ofHour.get(branchId) ?? [], HOUR)) this.#write(branchId, HOUR, point);
      if (day < startOfStep(at, DAY)) {
        const hours = this.#points(branchId, HOUR, day, day + DAY - 1);
        for (const point of aggregate(hours, DAY)) this.#write(branchId, DAY, point);
      }
      for (const { step, retention } of RESOLUTIONS.slice(1)) {
        const deletion = 'delete from points where branch_id = ? and step = ? and slot < ?';
        this.#sql.exec(deletion, branchId, step, startOfStep(at - retention, step));
      }
    }
    this.#sql.exec('delete from minutes where slot < ?', startOfStep(at - DAY, MINUTE));
  }

  #forget(branchId: string): void {
    this.#sql.exec('delete from points where branch_id = ?', branchId);
    this.#sql.exec(
      'update minutes set metrics = json_remove(metrics, ?1) where json_type(metrics, ?1) is not null',
      pathOf(branchId),
    );
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
    const between = [startOfStep(from, step), to, from, to];
    const rows =
      step === MINUTE
        ? this.#sql.exec<Row>(
            `select at, json_extract(metrics, ?1) as metrics from minutes
             where slot between ?2 and ?3 and at between ?4 and ?5 and json_type(metrics, ?1) is not null order by slot`,
            pathOf(branchId),
            ...between,
          )
        : this.#sql.exec<Row>(
            `select at, metrics from points
             where branch_id = ? and step = ? and slot between ? and ? and at between ? and ? order by slot`,
            branchId,
            step,
            ...between,
          );
    return rows.toArray().map(({ at, metrics }) => ({ at, values: JSON.parse(metrics) as BranchValues }));
  }

  /** @param from and `to`: Unix milliseconds, inclusive */
  #minutes(from: number, to: number): MeasuredMinute[] {
    const rows = this.#sql.exec<Row>(
      'select at, metrics from minutes where slot between ? and ? and at between ? and ? order by slot',
      startOfStep(from, MINUTE),
      to,
      from,
      to,
    );
    return rows.toArray().map(({ at, metrics }) => ({
      at,
      branches: Object.entries(JSON.parse(metrics) as Record<string, BranchValues>),
    }));
  }
}
