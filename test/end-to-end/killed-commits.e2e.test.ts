import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { pollUntil } from '../../agent/process/loops.ts';
import { Api, type BranchBody } from '../support/api.ts';
import { connect } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { crash, partOf, type Victim } from '../support/stack/crash.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';

const KILLS = Number(process.env.KILLS ?? 50);
const WITHIN_MS = 20 * 60_000;
const AWAY_MS = 20_000;
const VICTIMS: readonly Victim[] = ['agent', 'postgres', 'postmaster', 'gateway', 'pgbouncer'];

type Outcome = 'begun' | 'acknowledged' | 'refused';

/**
 * A client that commits one row after another, and its record of the replies. The record is in this process, so it
 * depends on nothing that is killed.
 */
class Writer {
  readonly record = new Map<number, Outcome>();
  readonly #name: string;
  readonly #url: string;
  readonly #working: Promise<void>;
  #isOver = false;

  constructor(name: string, url: string) {
    this.#name = name;
    this.#url = url;
    this.#working = this.#work();
  }

  acknowledged(): number[] {
    return [...this.record].flatMap(([n, outcome]) => (outcome === 'acknowledged' ? [n] : []));
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await this.#working;
  }

  async #work(): Promise<void> {
    let session: pg.Client | null = null;
    for (let n = 0; !this.#isOver; n += 1) {
      session ??= await connect(this.#url).catch(() => null);
      if (!session) {
        await sleep(50);
        continue;
      }
      this.record.set(n, 'begun');
      try {
        await session.query('begin');
        await session.query('insert into ledger (writer, n) values ($1, $2)', [this.#name, n]);
        await session.query('update total set n = n + 1 where writer = $1', [this.#name]);
        await session.query('commit');
        this.record.set(n, 'acknowledged');
      } catch (error) {
        // An error that the server has sent before COMMIT says that nothing is stored. Any other end is unknown.
        if (
          error instanceof pg.DatabaseError &&
          !error.code?.startsWith('57P') &&
          !error.code?.startsWith('08')
        )
          this.record.set(n, 'refused');
        await session.end().catch(() => {});
        session = null;
      }
      await sleep(5);
    }
    await session?.end().catch(() => {});
  }
}

interface Row {
  writer: string;
  n: number;
}

describe.runIf(IS_NIGHTLY)('50 kills while clients commit', () => {
  let stack: Stack;
  let api: Api;
  beforeAll(async () => {
    stack = await startStack({
      env: { ...UNLIMITED, CONNECTION_ATTEMPTS_PER_MINUTE: '10000' },
      restarts: false,
    });
    api = new Api(stack.url, await stack.token());
  });
  afterAll(() => stack?.stop());

  /** What a branch has, read once it can be. */
  async function contentOf(projectId: string, branch: string): Promise<{ rows: Row[]; totals: Row[] }> {
    const { direct_url } = await api.credentials(projectId, branch, '?role=owner');
    return eventually(async () => {
      const session = await connect(direct_url);
      try {
        const { rows } = await session.query<Row>('select writer, n from ledger order by writer, n');
        const totals = await session.query<Row>('select writer, n from total order by writer');
        return { rows, totals: totals.rows };
      } finally {
        await session.end();
      }
    }, 60);
  }

  /** Compares rows with a record. @param least rows that must be there */
  function check(
    name: string,
    writer: Writer,
    { rows, totals }: { rows: Row[]; totals: Row[] },
    least: readonly number[],
  ) {
    const found = rows.flatMap((row) => (row.writer === name ? [row.n] : []));
    const have = new Set(found);
    expect(found).toHaveLength(have.size);
    expect(least.filter((n) => !have.has(n))).toEqual([]);
    expect(found.filter((n) => !writer.record.has(n) || writer.record.get(n) === 'refused')).toEqual([]);
    // Both statements of a transaction, or neither.
    expect(totals.find((total) => total.writer === name)?.n).toBe(found.length);
  }

  test('each acknowledged commit is there, nothing else, and clones have what was acknowledged before them', {
    timeout: WITHIN_MS,
  }, async () => {
    const project = await api.project('Ledger');
    await api.allow(project.id);
    const names = ['direct', 'pooled'];
    const main = await api.credentials(project.id, 'main');
    const owner = await connect(main.direct_url);
    await owner.query('create table ledger (writer text, n int, primary key (writer, n))');
    await owner.query('create table total (writer text primary key, n int not null)');
    await owner.query('insert into total select unnest($1::text[]), 0', [names]);
    await owner.end();
    const writers = names.map(
      (name) => [name, new Writer(name, name === 'direct' ? main.direct_url : main.database_url)] as const,
    );
    const deadline = Date.now() + WITHIN_MS * 0.8;
    let kills = 0;
    let branches = 0;
    while (kills < KILLS && Date.now() < deadline) {
      const victim = VICTIMS[Math.floor(Math.random() * VICTIMS.length)] ?? 'postgres';
      const before = writers.map(([, writer]) => writer.acknowledged());
      const key = crypto.randomUUID();
      const branch_name = `at-${kills}`;
      const create = () =>
        api.post<BranchBody>(
          `/api/v1/projects/${project.id}/branches`,
          { branch_name },
          { 'Idempotency-Key': key },
        );
      const creating = create().catch(() => null);
      await sleep(Math.random() * 400);
      await crash(stack, victim);
      kills += 1;
      await sleep(Math.random() * 300);
      await stack.start(partOf(victim));
      await stack.untilReady(60_000);
      await creating;
      const made = await pollUntil(
        async () => {
          const answer = await create().catch(() => null);
          return answer?.status === 201 ? answer.body : null;
        },
        { within: 60_000, every: 500 },
      );
      if (!made) throw new Error(`no branch was made after ${victim} was killed`);
      branches += 1;
      const clone = await contentOf(project.id, made.branch_name);
      for (const [at, [name, writer]] of writers.entries()) check(name, writer, clone, before[at] ?? []);
      await api.delete(`/api/v1/projects/${project.id}/branches/${made.id}`);
      // Each writer commits again before the next kill.
      for (const [, writer] of writers) {
        const count = writer.acknowledged().length;
        const goes = await pollUntil(async () => writer.acknowledged().length > count || null, {
          within: AWAY_MS,
          every: 50,
        });
        expect(goes, `a client commits after ${victim} was killed`).toBe(true);
      }
    }
    for (const [, writer] of writers) await writer.end();
    const content = await contentOf(project.id, 'main');
    for (const [name, writer] of writers) check(name, writer, content, writer.acknowledged());
    const commits = writers.reduce((sum, [, writer]) => sum + writer.acknowledged().length, 0);
    console.log(`${kills} kills, ${branches} branches, ${commits} acknowledged commits`);
    expect(kills).toBe(KILLS);
    expect(commits).toBeGreaterThan(kills);
  });
});
