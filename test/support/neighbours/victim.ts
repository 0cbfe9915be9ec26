import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { type Api, FROM_LOOPBACK } from '../api.ts';
import { connect } from '../database.ts';
import type { Port } from '../host/host-project.ts';
import { fillLedger } from '../load.ts';
import { percentile } from '../percentile.ts';
import { dropBranch } from '../records/jobs.ts';

/** 20 transactions a second on each port. */
const TICK_MS = 50;
/** A transaction on a held connection waits for one of these when all are busy. */
const HELD_PER_PORT = 3;
/**
 * Every 80th transaction of a port has a connection of its own: 30 a minute over both ports, below the limit
 * of 50.
 */
const FRESH_EVERY = 80;
/** Every 20th transaction notifies: the queue of notifications is shared by all databases of the cluster. */
const NOTIFY_EVERY = 20;
const READ_EVERY_MS = 1_000;
/** What a real client would wait. */
export const TRANSACTION_WITHIN_MS = 5_000;
/** Longer, so that a late response is measured. */
const GIVEN_UP_AFTER_MS = 20_000;
const CALL_WITHIN_MS = 30_000;
/**
 * Below the 50 attempts a minute of a branch, so that reconnecting after an attack does not block the victim
 * itself.
 */
const ATTEMPTS_A_MINUTE = 45;
const RECONNECT_AFTER_MS = 500;
const TELLERS = 1_000;
const ACCOUNTS = 7_000;

type Kind = 'held' | 'fresh' | 'read';

/** One transaction or API read. Times in milliseconds, `start` on the clock of `performance.now()`. */
interface Sample {
  kind: Kind;
  port: Port | 'api';
  start: number;
  ms: number;
  failure: string | null;
}

export interface VictimReport {
  /** Transactions on both ports, failed ones included. */
  transactions: number;
  /** Of transactions on held connections, in milliseconds from the instant when each was due. */
  p50: number;
  p99: number;
  /** Of all transactions. */
  slowest: number;
  /** Of transactions that connect first. */
  freshP50: number;
  /** Of API reads. */
  readP50: number;
  /** Port or `api`, and why → how many. Empty when nothing failed. */
  failures: Record<string, number>;
}

/**
 * Another tenant on the same host: transactions at a constant rate on both ports, on held and on new
 * connections, and reads of rows through the API. A transaction's time begins when it is due, so that waiting
 * for a connection counts.
 */
export class Victim {
  readonly projectId: string;
  readonly urls: Record<Port, string>;
  readonly #api: Api;
  /** Branches are made of this one: a clone of the project under load would end its idle direct sessions. */
  readonly #calmProjectId: string;
  readonly #samples: Sample[] = [];
  readonly #idle: Record<Port, pg.Client[]> = { direct: [], pooled: [] };
  readonly #attempts: number[] = [];
  readonly #work = new Set<Promise<void>>();
  readonly #timers: NodeJS.Timeout[] = [];
  #stopping = false;

  private constructor(api: Api, projectId: string, calmProjectId: string, urls: Record<Port, string>) {
    this.#api = api;
    this.projectId = projectId;
    this.#calmProjectId = calmProjectId;
    this.urls = urls;
  }

  /** @param cidrs networks that its rules admit */
  static async start(api: Api, cidrs: string[]): Promise<Victim> {
    const project = await api.project('Victim');
    for (const cidr of cidrs) await api.allow(project.id, cidr);
    const { direct_url: direct, database_url: pooled } = await api.credentials(project.id, 'main');
    await fillLedger(direct, 1);
    const calm = await api.project('Calm');
    const victim = new Victim(api, project.id, calm.id, { direct, pooled });
    await victim.#begin();
    return victim;
  }

  async #begin(): Promise<void> {
    for (const port of ['direct', 'pooled'] as const) {
      for (let n = 0; n < HELD_PER_PORT; n++) this.#idle[port].push(await this.#connect(port));
      let ticks = 0;
      const timer = setInterval(() => {
        ticks += 1;
        this.#run(ticks % FRESH_EVERY === FRESH_EVERY / 2 ? 'fresh' : 'held', port, ticks);
      }, TICK_MS);
      this.#timers.push(timer);
    }
    this.#timers.push(setInterval(() => this.#run('read', 'api', 0), READ_EVERY_MS));
  }

  /**
   * What was due since `start` and before `end`, once all of it has ended.
   * @param withinMs a later response counts as a failure
   */
  async report(start: number, end: number, withinMs = TRANSACTION_WITHIN_MS): Promise<VictimReport> {
    await sleep(Math.max(0, end - performance.now()));
    await Promise.all(this.#work);
    const samples = this.#samples.filter((sample) => sample.start >= start && sample.start < end);
    const times = (kind: Kind) => samples.filter((sample) => sample.kind === kind).map(({ ms }) => ms);
    const failures: Record<string, number> = {};
    for (const { port, ms, failure: own } of samples) {
      const failure = own ?? (port !== 'api' && ms > withinMs ? 'late' : null);
      if (failure !== null) failures[`${port}: ${failure}`] = (failures[`${port}: ${failure}`] ?? 0) + 1;
    }
    return {
      transactions: samples.filter(({ kind }) => kind !== 'read').length,
      p50: percentile(times('held'), 0.5),
      p99: percentile(times('held'), 0.99),
      slowest: Math.max(0, ...times('held'), ...times('fresh')),
      freshP50: percentile(times('fresh'), 0.5),
      readP50: percentile(times('read'), 0.5),
      failures,
    };
  }

  /**
   * Makes a branch, rotates its passwords and deletes it.
   * @returns milliseconds of the first two; the reason instead when one failed
   */
  async branchAndRotate(): Promise<{ branchMs: number | string; rotationMs: number | string }> {
    const name = `during-${Math.random().toString(36).slice(2, 8)}`;
    let branchId: string | null = null;
    const branchMs = await timedCall(async () => {
      branchId = (await this.#api.branch(this.#calmProjectId, name)).id;
    });
    const path = `/api/v1/projects/${this.#calmProjectId}/branches/${branchId}/credentials/rotate`;
    const rotationMs =
      branchId === null
        ? 'no branch'
        : await timedCall(async () => {
            const { status, body } = await this.#api.post(path, undefined, FROM_LOOPBACK);
            if (status !== 200) throw new Error(`${status} ${body.error}`);
          });
    if (branchId !== null)
      await within(CALL_WITHIN_MS, dropBranch(this.#api, this.#calmProjectId, branchId)).catch(() => {});
    return { branchMs, rotationMs };
  }

  /** Waits until everything has succeeded for a second. @returns whether that came within `milliseconds` */
  async isWell(milliseconds: number): Promise<boolean> {
    for (const deadline = performance.now() + milliseconds; performance.now() < deadline; ) {
      const start = performance.now();
      const { failures } = await this.report(start, start + 1_000);
      if (Object.keys(failures).length === 0) return true;
    }
    return false;
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    for (const timer of this.#timers) clearInterval(timer);
    await Promise.all(this.#work);
    await Promise.all([...this.#idle.direct, ...this.#idle.pooled].map(end));
  }

  #run(kind: Kind, port: Port | 'api', tick: number): void {
    const start = performance.now();
    const work =
      port === 'api'
        ? within(CALL_WITHIN_MS, this.#read())
        : kind === 'fresh'
          ? this.#onFreshConnection(port, tick)
          : this.#onHeldConnection(port, tick);
    const sample = (failure: string | null) => {
      this.#samples.push({ kind, port, start, ms: performance.now() - start, failure });
      this.#work.delete(noted);
    };
    const noted: Promise<void> = work.then(
      () => sample(null),
      (error) => sample(reasonOf(error)),
    );
    this.#work.add(noted);
  }

  async #read(): Promise<void> {
    const path = `/api/v1/projects/${this.projectId}/branches/main/tables/teller/rows?limit=5`;
    const { status, body } = await this.#api.get(path);
    if (status !== 200) throw new Error(`${status} ${body.error}`);
  }

  async #onFreshConnection(port: Port, tick: number): Promise<void> {
    const client = await this.#connect(port);
    try {
      await within(GIVEN_UP_AFTER_MS, transfer(client, tick));
    } finally {
      void end(client);
    }
  }

  async #onHeldConnection(port: Port, tick: number): Promise<void> {
    const deadline = performance.now() + GIVEN_UP_AFTER_MS;
    const client = await this.#takeHeld(port, deadline);
    try {
      await within(deadline - performance.now(), transfer(client, tick));
      this.#idle[port].push(client);
    } catch (error) {
      void end(client);
      void this.#replace(port);
      throw error;
    }
  }

  async #takeHeld(port: Port, deadline: number): Promise<pg.Client> {
    for (;;) {
      const client = this.#idle[port].shift();
      if (client) return client;
      if (performance.now() > deadline) throw new Error('no connection');
      await sleep(2);
    }
  }

  /** Connects again in place of a connection that was lost, as a client's own pool does. */
  async #replace(port: Port): Promise<void> {
    while (!this.#stopping) {
      await sleep(RECONNECT_AFTER_MS);
      if (this.#recentAttempts() >= ATTEMPTS_A_MINUTE) continue;
      const client = await this.#connect(port).catch(() => null);
      if (!client) continue;
      if (this.#stopping) return end(client);
      this.#idle[port].push(client);
      return;
    }
  }

  #recentAttempts(): number {
    while ((this.#attempts[0] ?? Number.POSITIVE_INFINITY) < performance.now() - 60_000)
      this.#attempts.shift();
    return this.#attempts.length;
  }

  #connect(port: Port): Promise<pg.Client> {
    this.#attempts.push(performance.now());
    return connect(this.urls[port], { connectionTimeoutMillis: GIVEN_UP_AFTER_MS });
  }
}

/** Four statements in BEGIN and COMMIT, and now and then a notification. */
async function transfer(client: pg.Client, tick: number): Promise<void> {
  const account = pick(ACCOUNTS);
  await client.query('begin');
  await client.query('update account set balance = balance + 1 where id = $1', [account]);
  await client.query('select balance from account where id = $1', [account]);
  await client.query('insert into ledger (account, teller, amount) values ($1, $2, 1)', [
    account,
    pick(TELLERS),
  ]);
  if (tick % NOTIFY_EVERY === 0) await client.query("notify moved, 'account'");
  await client.query('commit');
}

async function timedCall(call: () => Promise<unknown>): Promise<number | string> {
  const start = performance.now();
  try {
    await within(CALL_WITHIN_MS, call());
    return performance.now() - start;
  } catch (error) {
    return reasonOf(error);
  }
}

/** @throws Error `timeout` */
async function within<T>(milliseconds: number, work: Promise<T>): Promise<T> {
  const timeout = Promise.withResolvers<never>();
  const timer = setTimeout(() => timeout.reject(new Error('timeout')), Math.max(1, milliseconds));
  try {
    return await Promise.race([work, timeout.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** Short enough to count by: SQLSTATE or the system's code, and the message without numbers. */
export function reasonOf(error: unknown): string {
  const { code, message } = error as { code?: string; message?: string };
  const text = String(message ?? error)
    .replace(/[0-9a-f-]{12,}|\d{5,}/g, '…')
    .slice(0, 80);
  return code ? `${code} ${text}` : text;
}

/** A connection whose server does not respond any more is destroyed. */
async function end(client: pg.Client): Promise<void> {
  await within(1_000, client.end()).catch(() => {
    (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
  });
}

/** A whole number from 1 to `most`. */
const pick = (most: number) => 1 + Math.floor(Math.random() * most);
