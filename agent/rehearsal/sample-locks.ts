import { setTimeout as sleep } from 'node:timers/promises';
import type { Queryable } from '../postgres/connect.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { type HeldLock, LockRecord, type LockSummary, NO_SAMPLES } from './lock-record.ts';
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

/**
 * Read in the agent's own database. Only the relations that were there at the start are sampled: a tenant
 * could lock ever new ones, which would fill the record, and hide the locks of other branches behind a limit.
 */
const HELD = `
  SELECT DISTINCT watched.database, held.relation::text, mode
  FROM unnest($1::text[], $2::text[]) AS watched (database, relations)
  JOIN pg_database ON datname = watched.database
  CROSS JOIN unnest(watched.relations::oid[]) AS of_branch (oid)
  JOIN pg_lock_status() AS held ON held.database = pg_database.oid AND held.relation = of_branch.oid
  WHERE locktype = 'relation' AND granted AND mode = ANY ($3)`;

interface Sampled {
  /** Null: of no rehearsal, so nothing of it is stored. */
  started_at: string | null;
  database: string;
  relations: string;
  record: LockRecord;
}

/** Samples the locks of all branches that are being rehearsed. What it has seen is stored every second. */
export class LockSampler {
  readonly #postgres: Queryable;
  readonly #troubles: TroubleLog;
  readonly #sampled = new Map<string, Sampled>();
  #wake = new AbortController();
  #looked: Promise<void> = Promise.resolve();

  constructor(postgres: Queryable, log: Log) {
    this.#postgres = postgres;
    this.#troubles = new TroubleLog(log);
  }

  /** Begins with what is stored immediately. */
  async begin(): Promise<void> {
    await this.#look();
    this.#wake.abort();
  }

  /** Samples once more, stores what was seen, and ends the sampling of the branch. */
  async end(branchId: string): Promise<void> {
    const sampled = this.#sampled.get(branchId);
    if (!sampled) return;
    await this.#sample();
    this.#sampled.delete(branchId);
    await this.#storeOf(branchId, sampled);
  }

  /**
   * Samples the locks of a database that is no branch, until `take`.
   * @param relations `oid` of each table
   */
  watch(id: string, database: string, relations: readonly string[]): void {
    const record = new LockRecord(NO_SAMPLES);
    this.#sampled.set(id, { started_at: null, database, relations: `{${relations.join(',')}}`, record });
    this.#wake.abort();
  }

  /** Samples once more: while a transaction has not ended, it holds every lock that it took. */
  sample(): Promise<void> {
    return this.#sample();
  }

  /** Ends `watch`. @returns what the samples have shown */
  take(id: string): LockSummary {
    const sampled = this.#sampled.get(id);
    this.#sampled.delete(id);
    return sampled?.record.summary ?? NO_SAMPLES;
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

  /** One after the other, so that an older answer never replaces a newer one. */
  #look(): Promise<void> {
    const look = this.#looked.then(() => this.#followRunning());
    this.#looked = look.catch(() => {});
    return look;
  }

  async #followRunning(): Promise<void> {
    const running = await readRunning(this.#postgres);
    const ids = new Set(running.map(({ branch_id }) => branch_id));
    for (const [branchId, { started_at }] of this.#sampled)
      if (started_at !== null && !ids.has(branchId)) this.#sampled.delete(branchId);
    for (const { branch_id, locks, ...rehearsal } of running)
      if (this.#sampled.get(branch_id)?.started_at !== rehearsal.started_at)
        this.#sampled.set(branch_id, { ...rehearsal, record: new LockRecord(locks) });
  }

  async #sample(): Promise<void> {
    const all = [...this.#sampled.values()];
    const values = [all.map(({ database }) => database), all.map(({ relations }) => relations), MODES];
    const { rows } = await this.#postgres.query<HeldLock & { database: string }>(HELD, values);
    const at = Date.now();
    const held = Map.groupBy(rows, ({ database }) => database);
    for (const { database, record } of all) record.add(at, held.get(database) ?? []);
  }

  async #store(): Promise<void> {
    for (const [branchId, sampled] of this.#sampled) await this.#storeOf(branchId, sampled);
  }

  #storeOf = async (branchId: string, { started_at, record }: Sampled) => {
    if (started_at !== null) await storeLocks(this.#postgres, branchId, started_at, record.summary);
  };
}
