import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import { connect, query } from './database.ts';

/** Rows of the table that makes up the database's size: about 7,000 to a megabyte, index included. */
const ACCOUNTS_PER_MB = 7_000;
const TELLERS = 1_000;

/** Tables of the load. Every transfer is written twice: as a balance and as a line of the ledger. */
const SCHEMA = `
  create table account (id int not null, balance bigint not null default 0, filler char(84) not null default '');
  create table teller (id int primary key, balance bigint not null default 0);
  create table ledger (account int not null, teller int not null, amount int not null, at timestamptz not null default now());`;

/** Makes the tables of the load in an empty database, of about `megabytes`. */
export async function fillLedger(ownerUrl: string, megabytes: number): Promise<void> {
  const client = await connect(ownerUrl);
  try {
    await client.query(SCHEMA);
    await client.query('insert into account (id) select generate_series(1, $1::int)', [
      megabytes * ACCOUNTS_PER_MB,
    ]);
    await client.query('alter table account add primary key (id)');
    await client.query('insert into teller (id) select generate_series(1, $1::int)', [TELLERS]);
    // Otherwise autovacuum does it in the middle of whatever is measured.
    await client.query('vacuum (freeze, analyze) account, teller');
  } finally {
    await client.end();
  }
}

/** What balances and ledger are `apart`: anything but 0 in all of it, and the database is not of one moment. */
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
  /** Milliseconds the slowest transaction took, its wait for the pooler included. */
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
  /** Once every client has a session. */
  readonly connected: Promise<unknown>;
  #stopping = false;
  /** Resolves once the clients need not rest any more. */
  #going = Promise.resolve();
  #go = () => {};
  /** Clients that are in a transaction. */
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
   * @param pauseMs how long a client rests between two transactions, on average
   */
  static async start(url: string, clients: number, pauseMs = 0): Promise<Load> {
    const [found] = await query<{ accounts: number }>(url, 'select max(id) as accounts from account');
    return new Load(url, found?.accounts ?? 0, clients, pauseMs);
  }

  /** What ended since `start` and before `end`, also as far as it began before. */
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

  /** Has every client rest after its transaction, and keep its connection. */
  async pause(): Promise<void> {
    this.#going = new Promise((resolve) => {
      this.#go = resolve;
    });
    while (this.#working > 0) await sleep(1);
  }

  /** Ends the rest. */
  resume(): void {
    this.#go();
  }

  /** Ends every client after its transaction. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#go();
    await Promise.all(this.#clients);
  }

  async #run(onSession: () => void): Promise<void> {
    let client: pg.Client | undefined;
    for (;;) {
      await this.#going;
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

/** A whole number from 1 to `most`. */
const pick = (most: number) => 1 + Math.floor(Math.random() * most);
