import { type BranchValues, gather, type Point, startOfStep } from './metrics.ts';

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** How long points of which step are kept, in milliseconds; the finest first. */
const RESOLUTIONS = [
  { step: MINUTE, kept: DAY },
  { step: HOUR, kept: 30 * DAY },
  { step: DAY, kept: 365 * DAY },
] as const;

/** Which points are wanted: moments in Unix milliseconds, both included, and the time between points. */
export interface Range {
  start: number;
  end: number;
  /** Milliseconds. */
  step: number;
}

/** The shortest step of which points are kept from `start` on. */
export const finestStep = (start: number, now: number): number =>
  RESOLUTIONS.find(({ kept }) => start >= now - kept)?.step ?? DAY;

const TABLE = `create table if not exists points (
  branch_id text not null,
  step integer not null,
  slot integer not null,
  at integer not null,
  metrics text not null,
  primary key (branch_id, step, slot)
)`;

interface Row extends Record<string, SqlStorageValue> {
  at: number;
  metrics: string;
}

/**
 * What a project's branches measured, in the SQLite of its object: table `points`, one row a branch, step and slot
 * (start of the step). The slot of a longer step is written when a measurement after its end comes, from the points of
 * the shorter one; until then its shorter points stand for it. That, and the deletion of what is too old, is done as
 * an hour turns, for each branch at most what one hour leaves, or all it has after a long silence.
 */
export class MetricHistory {
  readonly #sql: SqlStorage;

  constructor(sql: SqlStorage) {
    this.#sql = sql;
  }

  /**
   * Adds what was measured; the last measurement of a minute stands for it. All or nothing, when the caller does it
   * in one transaction.
   * @param at Unix milliseconds, after `lastAt`, which is that of the measurement before
   * @param onRecord branches that exist; the history of others goes
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
   * Points of one branch, oldest first: at most one a step.
   * @param range its step is at least `finestStep` of its start
   * @param lastAt moment of the last measurement; null when there was none
   */
  read(branchId: string, { start, end, step }: Range, lastAt: number | null): Point[] {
    if (lastAt === null) return [];
    const finest = RESOLUTIONS.findLastIndex((resolution) => resolution.step <= step);
    const points: Point[] = [];
    let from = start;
    for (const resolution of RESOLUTIONS.slice(0, finest + 1).reverse()) {
      points.push(...this.#points(branchId, resolution.step, from, end));
      // The slot that the last measurement is in is not written yet.
      from = Math.max(start, startOfStep(lastAt, resolution.step));
    }
    return gather(points, step);
  }

  /** Moments after `since` that minutes are kept of, oldest first, with what each branch had. */
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

  /** Writes the longer steps that have ended since the last measurement, then deletes what is kept no longer. */
  #rollUp(branchId: string, lastAt: number, at: number): void {
    for (const [index, { step }] of RESOLUTIONS.entries()) {
      const finer = RESOLUTIONS[index - 1];
      const slot = startOfStep(lastAt, step);
      if (!finer || slot === startOfStep(at, step)) continue;
      const points = this.#points(branchId, finer.step, slot, slot + step - 1);
      for (const point of gather(points, step)) this.#write(branchId, step, point);
    }
    for (const { step, kept } of RESOLUTIONS) {
      const ofStep = 'delete from points where branch_id = ? and step = ? and slot < ?';
      this.#sql.exec(ofStep, branchId, step, startOfStep(at - kept, step));
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
