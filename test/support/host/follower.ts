import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { FollowWatch } from '../../../agent/transfer/watch-followed.ts';
import type { FollowReport } from '../../../shared/protocol/follow.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { followName } from '../../../shared/protocol/transfer-operations.ts';
import { connect as connectTo } from '../database.ts';
import { eventually } from '../eventually.ts';
import { IS_NIGHTLY } from '../nightly.ts';
import { OTHER_LOGIN, SOURCE_LOGIN, type SourceServer, startSource } from '../source-server.ts';
import { startHost, type TestHost } from './host.ts';
import { asClient, type Branch, identity, Project } from './host-project.ts';

/** Money moves between accounts, and each transfer is counted twice. One commit has a sum, and two equal counts. */
export const BANK = `
  set role app;
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  create table visit (at timestamptz);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0);
  grant usage on schema public to ${OTHER_LOGIN};
  grant all on all tables in schema public to ${OTHER_LOGIN};
  reset role`;
export const TRANSFER = `begin;
  update account set balance = balance - 7 where id = (select 1 + (random() * 24)::int);
  update account set balance = balance + 7 where id = (select 26 + (random() * 24)::int);
  insert into transfer (amount) values (7);
  update counter set n = n + 1;
  commit`;
export const STATE = `select (select sum(balance)::int from account) as sum, (select count(*)::int from transfer) as transfers,
  (select n from counter) as counted, (select max(id)::int from transfer) as last`;

/** How often the watch compares the schemas, which takes a third of a second of processor time. Milliseconds. */
const COMPARE_EVERY = 5_000;

/** A host with a project whose `main` can follow a source, and the calls of the gateway about it. */
export class Follower {
  readonly source: SourceServer;
  readonly servers: TestHost;
  project: Project;
  main!: Branch;
  reports: FollowReport[] = [];
  #stopWatch = new AbortController();
  #watching: Promise<void> = Promise.resolve();
  #made = 0;

  private constructor(source: SourceServer, servers: TestHost) {
    this.source = source;
    this.servers = servers;
    this.project = new Project(servers.host);
  }

  /**
   * @param programs of the source, as in `startSource`
   * @param settings of the source, as in `startSource`
   * @param ofHost further settings of the agent
   */
  static async start(
    programs?: string,
    settings?: string,
    ofHost: Record<string, string> = {},
  ): Promise<Follower> {
    const source = await startSource(settings, programs);
    try {
      const servers = await startHost({
        settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8', ...ofHost },
      });
      const follower = new Follower(source, servers);
      follower.startWatch();
      return follower;
    } catch (error) {
      await source.stop();
      throw error;
    }
  }

  /** Another tenant's project on the host. It is not watched by itself, and its `source_url` has to be given. */
  async neighbour(): Promise<Follower> {
    const other = new Follower(this.source, this.servers);
    this.#made += 1;
    other.main = await other.project.create(`db_follow_other_${this.#made}`, null);
    return other;
  }

  async stop(): Promise<void> {
    await this.stopWatch();
    await this.servers.stop();
    await this.source.stop();
  }

  startWatch(): void {
    this.reports = [];
    this.#stopWatch = new AbortController();
    const watch = new FollowWatch(this.servers.host, (report) => this.reports.push(report), COMPARE_EVERY);
    this.#watching = watch.run(this.#stopWatch.signal);
  }

  async stopWatch(): Promise<void> {
    this.#stopWatch.abort();
    await this.#watching;
  }

  /** Another project with an empty `main`, and a source with the bank alone. */
  async renew(): Promise<void> {
    this.#made += 1;
    this.project = new Project(this.servers.host);
    this.main = await this.project.create(`db_follow_${this.#made}`, null);
    // What a test that failed has left.
    await this.source.run(
      'begin read write; alter database shop reset default_transaction_read_only; commit',
    );
    for (const { slot } of await this.source.run<{ slot: string }>(
      'select slot_name as slot, pg_terminate_backend(active_pid) from pg_replication_slots',
    ))
      await eventually(() => this.source.run(`select pg_drop_replication_slot('${slot}')`));
    for (const { name } of await this.source.run<{ name: string }>(
      'select quote_ident(pubname) as name from pg_publication',
    ))
      await this.source.run(`drop publication ${name}`);
    await this.source.run(`drop schema public cascade; create schema public authorization app; ${BANK}`);
  }

  /** A branch of `main`. */
  branch(name: string): Promise<Branch> {
    return this.project.create(`${this.main.database}_br_${name}`, this.main.database);
  }

  get ids() {
    const { project_id, branch_id, database } = this.main;
    return { project_id, branch_id, database };
  }

  get follow() {
    return { slot: followName(this.project.id), publication: null };
  }

  async run<M extends Method>(method: M, params: object): Promise<MethodResult<M>> {
    const result = await runOperation(this.servers.host, method, params);
    assert(!JSON.stringify(result).includes(SOURCE_LOGIN.password));
    return result;
  }

  copyParams(more: object = {}) {
    const params = {
      ...identity(this.main),
      job_id: randomUUID(),
      source_url: this.source.url(),
      tables: null,
    };
    return {
      ...params,
      room_bytes: 2 ** 30,
      jobs: 2,
      busy_wait: 1_000,
      follow: this.follow,
      ...more,
    };
  }

  startParams(source_url = this.source.url()) {
    return { ...this.ids, source_url, ...this.follow, tables: null };
  }

  /** Copies, and makes the copy the database of `main`. */
  async copy(params = this.copyParams()): Promise<MethodResult<'transfer.copy'>> {
    const result = await this.run('transfer.copy', params);
    assert(result.copied, JSON.stringify(result.findings));
    await this.run('reset.swap', {
      ...identity(this.main),
      job_id: params.job_id,
      snapshot_id: randomUUID(),
    });
    return result;
  }

  async begin(more: { source_url?: string } = {}): Promise<void> {
    await this.copy(this.copyParams(more));
    await this.run('follow.start', this.startParams(more.source_url));
  }

  here = (sql: string) => asClient(this.servers.host, 'direct', this.main, 'read_only', sql);

  status = () => this.run('follow.status', this.ids);

  /** Names of the slots and publications at the source. */
  atSource = () =>
    this.source.run(
      'select slot_name::text as name from pg_replication_slots union all select pubname from pg_publication order by 1',
    );

  /** Runs `action` while two clients of the application, of two logins, make transfers. */
  async underLoad<T>(action: () => Promise<T>): Promise<T> {
    let isOver = false;
    const clients = [SOURCE_LOGIN.user, OTHER_LOGIN].map(async (username) => {
      while (!isOver) {
        // One whose session was ended connects again.
        const client = await connectTo(this.source.url({ username })).catch(() => null);
        try {
          while (client && !isOver) {
            await client.query(TRANSFER);
            // Leaves the processors to the others.
            await sleep(IS_NIGHTLY ? 2 : 10);
          }
        } catch {
        } finally {
          await client?.end().catch(() => {});
        }
      }
    });
    try {
      return await action();
    } finally {
      isOver = true;
      await Promise.all(clients);
    }
  }

  async untilLevel(): Promise<void> {
    await eventually(async () => assert.deepEqual(await this.here(STATE), await this.source.run(STATE)));
  }

  /** Stops following, and expects that nothing is left. */
  async end(): Promise<void> {
    const stopped = await this.run('follow.stop', { ...this.ids, source_url: null, ...this.follow });
    assert.deepEqual(stopped, { dropped_at_source: true, message: null });
    await this.expectNothingLeft();
  }

  async expectNothingLeft(): Promise<void> {
    assert.deepEqual(await this.atSource(), []);
    await this.project.drop(this.main);
    const role = `u_${this.project.id.replaceAll('-', '')}_query`;
    assert.deepEqual(
      await this.servers.query(
        `select subname::text as name from pg_subscription where subname = '${followName(this.project.id)}' union all select rolname from pg_roles where rolname = '${role}'`,
      ),
      [],
    );
  }
}
