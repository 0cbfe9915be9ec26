import { setTimeout as sleep } from 'node:timers/promises';
import { isMainDatabase } from '../../shared/branch/database-name.ts';
import type { Forecast } from '../../shared/protocol/change-operations.ts';
import type { Queryable } from '../postgres/connect.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { BUCKETS, bucketOf, type Holder, longestOf, WaitRecord } from './wait-record.ts';

/**
 * The forecast of how long the locks of a change would wait, from samples of the locks that clients of each `main` hold: by table and hour, in
 * the agent's own tables. No text of a statement is read.
 */

const SAMPLE_EVERY_MS = 1_000;
/** Share of its time that the sampling may take: the lock table of the host can be large. */
const BUSY_SHARE = 0.05;
const STORE_EVERY_MS = 60_000;
const HOUR_MS = 3_600_000;
const DAYS = 14;
/** Bounds of a project: a tenant can lock any number of tables. */
const TABLES_MAX = 2_000;
const BYTES_MAX = 256 * 1024;
/** Names of sessions that are kept of a table and an hour. */
const NAMES_MAX = 20;
const SESSIONS_MAX = 1_000;

/** Locks of a read block only a lock that blocks readers. */
const READS = ['AccessShareLock', 'RowShareLock', 'ShareLock'];

/** Read in the agent's own database. PostgreSQL keeps control characters out of `application_name`. */
const HELD = `
  SELECT project_id, relation::text, pid, holder, writes, age, name FROM (
    SELECT project_id, held.relation, held.pid, held.virtualtransaction AS holder, bool_or(mode <> ALL ($1)) AS writes,
           greatest(0, extract(epoch FROM clock_timestamp() - min(xact_start)) * 1000)::float8 AS age,
           min(application_name) AS name,
           dense_rank() OVER (PARTITION BY project_id ORDER BY held.relation) AS place
    FROM pg_lock_status() AS held
    JOIN pg_stat_activity AS session USING (pid)
    JOIN branch ON branch.database = datname
    WHERE locktype = 'relation' AND granted AND held.relation >= 16384 AND held.database = datid
      AND ${isMainDatabase('datname')} AND usename ~ '^u_[0-9a-f]{32}_(owner|rw|ro)$'
    GROUP BY project_id, held.relation, held.pid, held.virtualtransaction
  ) AS of_main WHERE place <= ${TABLES_MAX}`;

interface HeldTable extends Holder {
  project_id: string;
  relation: string;
  pid: number;
  holder: string;
  writes: boolean;
}

/** A table and an hour, with what was seen since the last `store`. */
interface Cell {
  project_id: string;
  relation: string;
  writers: boolean;
  hour: number;
  waits: number[];
  sessions: Set<number>;
  names: Map<string, number>;
}

const STORE = `
  INSERT INTO lock_wait AS known (project_id, relation, writers, hour, waits, sessions, names)
  SELECT project_id, relation, writers, to_timestamp(hour / 1000.0), waits, sessions, names
  FROM jsonb_to_recordset($1) AS cell (project_id uuid, relation oid, writers boolean, hour float8, waits smallint[],
                                       sessions integer, names jsonb)
  JOIN project USING (project_id)
  ON CONFLICT (project_id, relation, writers, hour) DO UPDATE SET
    waits = ARRAY(SELECT coalesce(one, 0) + coalesce(other, 0)
                  FROM unnest(known.waits, excluded.waits) WITH ORDINALITY AS waits (one, other, place) ORDER BY place),
    sessions = greatest(known.sessions, excluded.sessions),
    names = (SELECT coalesce(jsonb_object_agg(key, seen), '{}') FROM (
      SELECT key, sum(value::int) AS seen FROM (
        SELECT * FROM jsonb_each_text(known.names) UNION ALL SELECT * FROM jsonb_each_text(excluded.names)
      ) AS both_names GROUP BY key ORDER BY seen DESC, key LIMIT ${NAMES_MAX}) AS named)`;

/** The tables and hours with the longest waits stay. */
const TRIM = `
  DELETE FROM lock_wait USING (
    SELECT project_id, relation, writers, hour,
           sum(pg_column_size(lock_wait)) OVER longest AS bytes, row_number() OVER longest AS place
    FROM lock_wait WHERE project_id = ANY ($1)
    WINDOW longest AS (PARTITION BY project_id ORDER BY cardinality(waits) DESC, hour DESC, relation, writers)
  ) AS found
  WHERE (bytes > ${BYTES_MAX} OR place > ${TABLES_MAX})
    AND lock_wait.project_id = found.project_id AND lock_wait.relation = found.relation
    AND lock_wait.writers = found.writers AND lock_wait.hour = found.hour`;

const hourOf = (at: number) => Math.floor(at / HOUR_MS) * HOUR_MS;

/** Samples the locks of clients in every `main` of the host. */
export class LockForecast {
  readonly #postgres: Queryable;
  readonly #troubles: TroubleLog;
  /** By project, table and kind of lock. */
  readonly #records = new Map<string, WaitRecord>();
  #cells = new Map<string, Cell>();
  #samples = new Map<number, number>();
  #last = 0;
  #storedAt = 0;

  constructor(postgres: Queryable, log: Log) {
    this.#postgres = postgres;
    this.#troubles = new TroubleLog(log);
  }

  /** Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    this.#storedAt = performance.now();
    while (!signal.aborted) {
      const began = performance.now();
      try {
        await this.sample();
        if (began - this.#storedAt >= STORE_EVERY_MS) await this.store();
        this.#troubles.clearAll();
      } catch (error) {
        this.#troubles.report('forecast.unsampled', 'PostgreSQL', error);
      }
      const busy = performance.now() - began;
      await sleep(Math.max(SAMPLE_EVERY_MS - busy, busy / BUSY_SHARE - busy), undefined, { signal }).catch(
        () => {},
      );
    }
  }

  async sample(): Promise<void> {
    const { rows } = await this.#postgres.query<HeldTable>(HELD, [READS]);
    const at = Date.now();
    // After a pause, nobody knows who has held what meanwhile.
    if (at - this.#last > 10 * SAMPLE_EVERY_MS) this.#records.clear();
    const seen = new Map<string, Map<string, HeldTable>>();
    for (const row of rows)
      for (const writers of row.writes ? [false, true] : [false]) {
        const key = `${row.project_id} ${row.relation} ${writers}`;
        const holders = seen.get(key) ?? new Map<string, HeldTable>();
        seen.set(key, holders.set(row.holder, row));
      }
    for (const key of new Set([...this.#records.keys(), ...seen.keys()]))
      this.#follow(key, at, seen.get(key) ?? new Map());
    this.#samples.set(hourOf(at), (this.#samples.get(hourOf(at)) ?? 0) + 1);
    this.#last = at;
  }

  #follow(key: string, at: number, holders: ReadonlyMap<string, HeldTable>): void {
    const record = this.#records.get(key) ?? new WaitRecord();
    const every = Math.max(SAMPLE_EVERY_MS, at - this.#last);
    const waits = record.add(holders, { at, last: this.#last, every });
    if (record.isHeld) this.#records.set(key, record);
    else this.#records.delete(key);
    for (const { at: moment, ms, behind } of waits) {
      const { waits: counts, names } = this.#cellOf(key, hourOf(moment));
      const bucket = bucketOf(ms);
      while (counts.length <= bucket) counts.push(0);
      counts[bucket] = (counts[bucket] ?? 0) + 1;
      if (names.has(behind) || names.size < NAMES_MAX) names.set(behind, (names.get(behind) ?? 0) + 1);
    }
    if (holders.size === 0) return;
    const { sessions } = this.#cellOf(key, hourOf(at));
    for (const { pid } of holders.values()) if (sessions.size < SESSIONS_MAX) sessions.add(pid);
  }

  #cellOf(key: string, hour: number): Cell {
    const place = `${key} ${hour}`;
    const [project_id = '', relation = '', writers] = key.split(' ');
    const cell: Cell = this.#cells.get(place) ?? {
      project_id,
      relation,
      writers: writers === 'true',
      hour,
      waits: [],
      sessions: new Set(),
      names: new Map(),
    };
    this.#cells.set(place, cell);
    return cell;
  }

  /** Adds what the samples have shown since the last call. */
  async store(): Promise<void> {
    const cells = [...this.#cells.values()].map(({ sessions, names, ...cell }) => ({
      ...cell,
      sessions: sessions.size,
      names: Object.fromEntries(names),
    }));
    const samples = [...this.#samples];
    this.#cells = new Map();
    this.#samples = new Map();
    this.#storedAt = performance.now();
    if (cells.length > 0) await this.#postgres.query(STORE, [JSON.stringify(cells)]);
    await this.#postgres.query(
      `INSERT INTO lock_sample AS known (hour, samples)
       SELECT to_timestamp(hour / 1000.0), samples FROM unnest($1::float8[], $2::int[]) AS sampled (hour, samples)
       ON CONFLICT (hour) DO UPDATE SET samples = known.samples + excluded.samples`,
      [samples.map(([hour]) => hour), samples.map(([, count]) => count)],
    );
    const old = `hour < now() - interval '${DAYS} days'`;
    await this.#postgres.query(`DELETE FROM lock_wait WHERE ${old}`);
    await this.#postgres.query(`DELETE FROM lock_sample WHERE ${old}`);
    await this.#postgres.query(TRIM, [[...new Set(cells.map(({ project_id }) => project_id))]]);
  }
}

/** A lock of the change, on a table that `main` has. */
interface StrongLock {
  oid: string;
  schema: string;
  name: string;
  mode: string;
}

interface StoredWait {
  relation: string;
  writers: boolean;
  hour: Date;
  waits: number[];
  sessions: number;
  names: Record<string, number>;
}

/** Tables that are reported. */
const REPORTED_MAX = 20;

/** The waits that each lock would have had in the last 14 days; none without a sample. */
export async function readForecast(
  db: Queryable,
  projectId: string,
  locks: readonly StrongLock[],
): Promise<Forecast[]> {
  const { rows: sampled } = await db.query<{ hour: Date; samples: number }>(
    `SELECT hour, samples FROM lock_sample JOIN project ON hour >= date_trunc('hour', sampled_since)
     WHERE project_id = $1 AND hour >= now() - interval '${DAYS} days'`,
    [projectId],
  );
  if (sampled.length === 0 || locks.length === 0) return [];
  const { rows } = await db.query<StoredWait>(
    `SELECT relation::text, writers, hour, waits, sessions, names FROM lock_wait
     WHERE project_id = $1 AND relation = ANY ($2::oid[]) AND hour >= now() - interval '${DAYS} days'`,
    [projectId, locks.map(({ oid }) => oid)],
  );
  const forecasts = locks.map(({ oid, ...lock }) => {
    const writers = lock.mode !== 'AccessExclusiveLock';
    const ofTable = rows.filter((row) => row.relation === oid && row.writers === writers);
    return { ...lock, ...forecastOf(sampled, ofTable) };
  });
  return forecasts
    .toSorted((one, other) => other.worst.wait_ms.p95 - one.worst.wait_ms.p95)
    .slice(0, REPORTED_MAX);
}

const slotOf = (hour: Date) => {
  const days = [0, 6].includes(hour.getUTCDay()) ? ('weekend' as const) : ('weekdays' as const);
  return { days, hour: hour.getUTCHours() };
};

function forecastOf(
  sampled: readonly { hour: Date; samples: number }[],
  rows: readonly StoredWait[],
): Omit<Forecast, 'schema' | 'name' | 'mode'> {
  const keyOf = (hour: Date) => JSON.stringify(slotOf(hour));
  const hours = [...Map.groupBy(sampled, ({ hour }) => keyOf(hour))]
    .map(([key, ofSlot]) => {
      const waits = rows.filter(({ hour }) => keyOf(hour) === key);
      return { ...(JSON.parse(key) as ReturnType<typeof slotOf>), wait_ms: waitsOf(ofSlot, waits) };
    })
    .toSorted((one, other) => other.wait_ms.p95 - one.wait_ms.p95 || other.wait_ms.p50 - one.wait_ms.p50);
  const [worst] = hours;
  const quietest = hours.at(-1);
  if (!worst || !quietest) throw new Error('no hour was sampled');
  const names = new Map<string, number>();
  for (const row of rows)
    for (const [name, seen] of Object.entries(row.names)) names.set(name, (names.get(name) ?? 0) + seen);
  return {
    wait_ms: waitsOf(sampled, rows),
    waiting_sessions: Math.max(0, ...rows.map(({ sessions }) => sessions)),
    behind: [...names]
      .toSorted(([, one], [, other]) => other - one)
      .slice(0, NAMES_MAX)
      .map(([name]) => name),
    rests_on_days: new Set(sampled.map(({ hour }) => hour.toISOString().slice(0, 10))).size,
    worst,
    quietest,
  };
}

/** Percentiles of the waits at all samples, of which most find nobody. */
function waitsOf(sampled: readonly { samples: number }[], rows: readonly StoredWait[]) {
  const counts = Array.from({ length: BUCKETS }, (_, bucket) =>
    rows.reduce((sum, { waits }) => sum + (waits[bucket] ?? 0), 0),
  );
  const held = counts.reduce((sum, count) => sum + count, 0);
  const all = Math.max(
    held,
    sampled.reduce((sum, { samples }) => sum + samples, 0),
  );
  const percentile = (share: number) => {
    let left = share * all - (all - held);
    if (left <= 0) return 0;
    for (const [bucket, count] of counts.entries()) {
      left -= count;
      if (left <= 0) return longestOf(bucket);
    }
    return longestOf(BUCKETS - 1);
  };
  return { p50: percentile(0.5), p95: percentile(0.95) };
}
