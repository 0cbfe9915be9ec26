import { setTimeout as sleep } from 'node:timers/promises';
import type { Queryable } from '../postgres/connect.ts';
import { type Log, TroubleLog } from '../trouble-log.ts';
import { type HeldLock, LockRecord } from './lock-record.ts';
import { readRunning, storeLocks } from './stored-rehearsals.ts';

const SAMPLE_EVERY_MS = 50;
/** Share of its time that the sampling may take: the lock table of the host can be large. */
const BUSY_SHARE = 0.25;
const STORE_EVERY_MS = 1_000;
/** Another process may have begun a rehearsal, and an earlier process may have left one. */
const LOOK_EVERY_MS = 5_000;

/** Modes that block writers, and stronger ones. */
const MODES = [
  'ShareUpdateExclusiveLock',
  'ShareLock',
  'ShareRowExclusiveLock',
  'ExclusiveLock',
  'AccessExclusiveLock',
];
const LOCKS_MAX = 10_000;

/** Read in the agent's own database. */
const HELD = `
  SELECT datname AS database, relation::text, mode
  FROM pg_lock_status() AS held JOIN pg_database ON pg_database.oid = held.database
  WHERE locktype = 'relation' AND granted AND mode = ANY ($2) AND datname = ANY ($1)
  GROUP BY 1, 2, 3 LIMIT ${LOCKS_MAX}`;

interface Sampled {
  database: string;
  record: LockRecord;
}

/** Samples the locks of all branches that are being rehearsed. What it has seen is stored every second. */
export class LockSampler {
  readonly #postgres: Queryable;
  readonly #troubles: TroubleLog;
  readonly #sampled = new Map<string, Sampled>();
  #wake = new AbortController();

  constructor(postgres: Queryable, log: Log) {
    this.#postgres = postgres;
    this.#troubles = new TroubleLog(log);
  }

  /** Begins with a branch immediately. Its rehearsal is stored already. */
  async begin(branchId: string): Promise<void> {
    this.#sampled.delete(branchId);
    await this.#look();
    this.#wake.abort();
  }

  /** Samples once more, stores what was seen, and ends the sampling of the branch. */
  async end(branchId: string): Promise<void> {
    const sampled = this.#sampled.get(branchId);
    if (!sampled) return;
    await this.#sample();
    this.#sampled.delete(branchId);
    await storeLocks(this.#postgres, branchId, sampled.record.summary);
  }

  /** Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    let storedAt = 0;
    let lookedAt = Number.NEGATIVE_INFINITY;
    while (!signal.aborted) {
      const started = performance.now();
      try {
        if (started - lookedAt >= LOOK_EVERY_MS) {
          await this.#look();
          lookedAt = started;
        }
        if (this.#sampled.size > 0) await this.#sample();
        if (started - storedAt >= STORE_EVERY_MS) {
          await this.#store();
          storedAt = started;
        }
        this.#troubles.clearAll();
      } catch (error) {
        this.#troubles.report('locks.unsampled', 'PostgreSQL', error);
      }
      const busy = performance.now() - started;
      await this.#pause(
        this.#sampled.size > 0 ? Math.max(SAMPLE_EVERY_MS - busy, busy / BUSY_SHARE - busy) : LOOK_EVERY_MS,
        signal,
      );
    }
  }

  async #pause(ms: number, signal: AbortSignal): Promise<void> {
    this.#wake = new AbortController();
    await sleep(ms, undefined, { signal: AbortSignal.any([signal, this.#wake.signal]) }).catch(() => {});
  }

  async #look(): Promise<void> {
    const running = await readRunning(this.#postgres);
    const ids = new Set(running.map(({ branch_id }) => branch_id));
    for (const branchId of this.#sampled.keys()) if (!ids.has(branchId)) this.#sampled.delete(branchId);
    for (const { branch_id, database, locks } of running)
      if (!this.#sampled.has(branch_id))
        this.#sampled.set(branch_id, { database, record: new LockRecord(locks) });
  }

  async #sample(): Promise<void> {
    const all = [...this.#sampled.values()];
    const databases = all.map(({ database }) => database);
    const { rows } = await this.#postgres.query<HeldLock & { database: string }>(HELD, [databases, MODES]);
    const at = Date.now();
    for (const { database, record } of all)
      record.add(
        at,
        rows.filter((row) => row.database === database),
      );
  }

  async #store(): Promise<void> {
    for (const [branchId, { record }] of this.#sampled)
      await storeLocks(this.#postgres, branchId, record.summary);
  }
}
