import pg from 'pg';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { Api } from '../api.ts';
import { eventually } from '../eventually.ts';
import { TRANSFER } from '../host/follower.ts';
import { type Stack, startStack, UNLIMITED } from './stack.ts';

/** A stack with two database hosts, between which projects move. */

/** What `TRANSFER` and `STATE` need. */
export const BANK = `
  create table account (id int primary key, balance int not null);
  create table transfer (id bigint generated always as identity primary key, amount int not null);
  create table counter (id int primary key, n int not null);
  insert into account select n, 1000 from generate_series(1, 50) n;
  insert into counter values (1, 0)`;

const withoutVerification = (url: string) => url.replace(/sslmode=[a-z-]+/, 'sslmode=no-verify');

/** Runs statements in a session of its own. */
export async function runAt<Row extends pg.QueryResultRow>(url: string, sql: string): Promise<Row[]> {
  const client = new pg.Client({
    connectionString: withoutVerification(url),
    connectionTimeoutMillis: 20_000,
  });
  client.on('error', () => {});
  await client.connect();
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end().catch(() => {});
  }
}

export interface MoveBody {
  state: string;
  from_host_id: string;
  to_host_id: string;
  urls_change: boolean;
  branches: { name: string; size_bytes: number; state: string }[];
  job: {
    id: string;
    status: string;
    error: { code: string; message: string } | null;
    steps: { name: string; status: string; started_at: string; finished_at: string }[];
  };
}

export const pathOf = (projectId: string) => `/platform/v1/projects/${projectId}/move`;

/** Twenty branches took five minutes on a machine with a load of 28. */
const ENDS_WITHIN_SECONDS = 600;

/** Benchmarks use it too, which have no `expect`. */
function require(isSo: boolean, found: unknown): void {
  if (!isSo) throw new Error(JSON.stringify(found));
}

export class TwoHosts {
  readonly stack: Stack;
  readonly api: Api;
  readonly platform: Api;
  hosts: { id: string; name: string }[] = [];

  private constructor(stack: Stack, token: string) {
    this.stack = stack;
    this.api = new Api(stack.url, token);
    this.platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET ?? '');
  }

  static async start(env: Record<string, string> = {}): Promise<TwoHosts> {
    const stack = await startStack({ env: { HOSTS: '2', BRANCH_LIMIT_MAX: '40', ...UNLIMITED, ...env } });
    const started = new TwoHosts(stack, await stack.token());
    await eventually(async () => {
      const { body } = await started.platform.get<{ hosts: { id: string; name: string; linked: boolean }[] }>(
        '/platform/v1/hosts',
      );
      require(body.hosts.length === 2 && body.hosts.every(({ linked }) => linked), body);
      started.hosts = body.hosts;
    });
    return started;
  }

  otherThan = (hostId: string) => this.hosts.find(({ id }) => id !== hostId)?.id ?? '';

  async hostOf(projectId: string): Promise<string> {
    const [first, second] = this.hosts;
    const { status } = await this.platform.get(`${pathOf(projectId)}?host_id=${first?.id}`);
    return (status === 422 ? first?.id : second?.id) ?? '';
  }

  moveOf = async (projectId: string) => (await this.platform.get<MoveBody>(pathOf(projectId))).body;

  async begin(projectId: string, host_id: string, more: Record<string, unknown> = {}): Promise<MoveBody> {
    const started = await this.platform.post<MoveBody>(pathOf(projectId), { host_id, ...more });
    require(started.status === 202, started.body);
    return started.body;
  }

  /** @returns the move, once its job has ended so */
  hasEnded = (projectId: string, status: string) =>
    eventually(async () => {
      const move = await this.moveOf(projectId);
      require(move.job.status === status, move.job);
      return move;
    }, ENDS_WITHIN_SECONDS);

  /** @returns the move, once its job has ended */
  end = (projectId: string) =>
    eventually(async () => {
      const move = await this.moveOf(projectId);
      require(move.job.status === 'succeeded' || move.job.status === 'failed', move.job);
      return move;
    }, ENDS_WITHIN_SECONDS);

  /** A project with the tables of `TRANSFER`, and some branches. */
  async project(name: string, more: Record<string, unknown> = {}, branches: string[] = []) {
    const project = await this.api.project(name, more);
    await this.api.allow(project.id);
    await runAt((await this.api.credentials(project.id, 'main')).direct_url, BANK);
    for (const branch of branches) await this.api.branch(project.id, branch);
    return project;
  }

  writer = (projectId: string, everyMs = 0) =>
    new Writer(async () => (await this.api.credentials(projectId, 'main')).direct_url, everyMs);
}

/** A client that writes, without a pause or at a rate, and reconnects to the URL that is current. */
export class Writer {
  committed = 0;
  /** Commits whose answer was lost. */
  unknown = 0;
  /** The longest time between two answers, in milliseconds. */
  longestGap = 0;
  readonly #everyMs: number;
  #isOver = false;
  readonly #done: Promise<void>;

  constructor(url: () => Promise<string>, everyMs = 0) {
    this.#everyMs = everyMs;
    this.#done = this.#run(url);
  }

  async #run(url: () => Promise<string>) {
    let last = performance.now();
    let next = last;
    while (!this.#isOver) {
      let client: pg.Client | undefined;
      try {
        client = new pg.Client({
          connectionString: withoutVerification(await url()),
          connectionTimeoutMillis: 5_000,
        });
        client.on('error', () => {});
        await client.connect();
        while (!this.#isOver) {
          this.unknown += 1;
          await client.query(TRANSFER);
          this.unknown -= 1;
          this.committed += 1;
          this.longestGap = Math.max(this.longestGap, performance.now() - last);
          last = performance.now();
          next = Math.max(next + this.#everyMs, last - 1_000);
          if (next > last) await new Promise((resolve) => setTimeout(resolve, next - last));
        }
      } catch {
        await new Promise((resolve) => setTimeout(resolve, 20));
      } finally {
        await client?.end().catch(() => {});
      }
    }
  }

  async stop() {
    this.#isOver = true;
    await this.#done;
    return this;
  }
}
