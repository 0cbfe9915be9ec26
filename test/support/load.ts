import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { connect, query } from './database.ts';

/** Rows of the table that determines the database's size: about 7,000 per megabyte, index included. */
const ACCOUNTS_PER_MB = 7_000;
const TELLERS = 1_000;

/** Tables of the load. Every transfer is written twice: as a balance and as a line of the ledger. */
const SCHEMA = `
  create table account (id int not null, balance bigint not null default 0, filler char(84) not null default '');
  create table teller (id int primary key, balance bigint not null default 0);
  create table ledger (account int not null, teller int not null, amount int not null, at timestamptz not null default now());`;

/** Creates the tables of the load in an empty database, with about `megabytes` of rows. */
export async function fillLedger(ownerUrl: string, megabytes: number): Promise<void> {
  const client = await connect(ownerUrl);
  try {
    await client.query(SCHEMA);
    await client.query('insert into account (id) select generate_series(1, $1::int)', [
      megabytes * ACCOUNTS_PER_MB,
    ]);
    await client.query('alter table account add primary key (id)');
    await client.query('insert into teller (id) select generate_series(1, $1::int)', [TELLERS]);
    // Otherwise autovacuum would run during the measurement.
    await client.query('vacuum (freeze, analyze) account, teller');
  } finally {
    await client.end();
  }
}

/** Inserts random text, which does not compress, into the table `filled`, whose only column is a text. */
export const fillText = (url: string, mib: number) =>
  query(
    url,
    `insert into filled select string_agg(md5(random()::text), '') from generate_series(1, $1::int * 128)
       cross join generate_series(1, 256) as line group by generate_series`,
    [mib],
  );

/** Selects the difference between balances and ledger as `apart`. It is 0 in a consistent copy. */
export const IMBALANCE = `
  select abs(booked - (select sum(balance) from account)) + abs(booked - (select sum(balance) from teller)) as apart
  from (select coalesce(sum(amount), 0) as booked from ledger) ledger`;

export async function imbalance(url: string): Promise<number> {
  const [found] = await query<{ apart: string }>(url, IMBALANCE);
  return Number(found?.apart);
}

/** One transaction. Times in milliseconds, `start` on the clock of `performance.now()`. */
interface Transaction {
  start: number;
  ms: number;
  error: string | null;
}

export interface LoadReport {
  transactions: number;
  /** Message of every transaction that failed. */
  failures: string[];
  /** Milliseconds of the slowest transaction, including its wait for the pooler. */
  worstMs: number;
  /** Milliseconds of every transaction, failed ones included. */
  times: number[];
}

/** TPC-B-like load: each client moves money, four statements in BEGIN and COMMIT. */
export class Load {
  readonly #url: string;
  readonly #accounts: number;
  readonly #pauseMs: number;
  readonly #transactions: Transaction[] = [];
  readonly #clients: Promise<void>[];
  /** Resolves when every client has a session. */
  readonly connected: Promise<unknown>;
  #stopping = false;
  /** Resolves when the clients may continue. */
  #resumed = Promise.resolve();
  #resume = () => {};
  /** Number of clients in a transaction. */
  #working = 0;

  private constructor(url: string, accounts: number, clients: number, pauseMs: number) {
    this.#url = url;
    this.#accounts = accounts;
    this.#pauseMs = pauseMs;
    const sessions = Array.from({ length: clients }, () => Promise.withResolvers<void>());
    this.#clients = sessions.map(({ resolve }) => this.#run(resolve));
    this.connected = Promise.all(sessions.map(({ promise }) => promise));
  }

  /**
   * Starts `clients` sessions on a database that `fillLedger` has filled.
   * @param pauseMs average pause of a client between two transactions
   */
  static async start(url: string, clients: number, pauseMs = 0): Promise<Load> {
    const [found] = await query<{ accounts: number }>(url, 'select max(id) as accounts from account');
    return new Load(url, found?.accounts ?? 0, clients, pauseMs);
  }

  /** @returns the transactions that ended in `[start, end)`, also those that started earlier */
  since(start: number, end = Number.POSITIVE_INFINITY): LoadReport {
    const during = this.#transactions.filter(
      (transaction) =>
        transaction.start + transaction.ms >= start && transaction.start + transaction.ms < end,
    );
    return {
      transactions: during.length,
      failures: during.flatMap(({ error }) => error ?? []),
      worstMs: during.reduce((worst, { ms }) => Math.max(worst, ms), 0),
      times: during.map(({ ms }) => ms),
    };
  }

  /** Pauses every client after its transaction; the connections stay open. */
  async pause(): Promise<void> {
    this.#resumed = new Promise((resolve) => {
      this.#resume = resolve;
    });
    while (this.#working > 0) await sleep(1);
  }

  /** Resumes the paused clients. */
  resume(): void {
    this.#resume();
  }

  /** Stops every client after its transaction. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#resume();
    await Promise.all(this.#clients);
  }

  async #run(onSession: () => void): Promise<void> {
    let client: pg.Client | undefined;
    for (;;) {
      await this.#resumed;
      if (this.#stopping) break;
      this.#working += 1;
      const start = performance.now();
      let error: string | null = null;
      try {
        client ??= await connect(this.#url);
        onSession();
        await this.#transfer(client);
      } catch (cause) {
        error = String(cause);
        await client?.end().catch(() => {});
        client = undefined;
      }
      this.#transactions.push({ start, ms: performance.now() - start, error });
      this.#working -= 1;
      if (this.#pauseMs > 0) await sleep(2 * this.#pauseMs * Math.random());
    }
    await client?.end();
  }

  async #transfer(client: pg.Client): Promise<void> {
    const account = pick(this.#accounts);
    const teller = pick(TELLERS);
    const amount = pick(10_000) - 5_000;
    await client.query('begin');
    await client.query('update account set balance = balance + $1 where id = $2', [amount, account]);
    await client.query('select balance from account where id = $1', [account]);
    await client.query('update teller set balance = balance + $1 where id = $2', [amount, teller]);
    await client.query('insert into ledger (account, teller, amount) values ($1, $2, $3)', [
      account,
      teller,
      amount,
    ]);
    await client.query('commit');
  }
}

/** @returns an integer from 1 to `max` */
const pick = (max: number) => 1 + Math.floor(Math.random() * max);
