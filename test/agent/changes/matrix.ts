import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { catalogLines, differentLines } from '../../support/catalog-lines.ts';
import { type Branch, connect, type HostWithProject, makeProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { COLUMN_ORDERS, REWRITTEN } from '../difference/schema/catalog-cases.ts';
import { REPORTED_CASES, SCHEMA_CASES, type SchemaCase } from '../difference/schema/schema-cases.ts';

const CLIENTS = 20;
const LOCK_TIMEOUT_MS = 500;
const BUDGET_MS = 2_000;
const SLACK_MS = 200;

const CASES: readonly SchemaCase[] = [...SCHEMA_CASES, ...REPORTED_CASES];
const schemaOf = (n: number) => `case_${n}_`;

/** SQLSTATEs of a table that the change has renamed, dropped or made again. */
const GONE = new Set(['42P01', '3F000', '42809']);

/** `main` has the base and the other side of each kind, and the branch its own side: the change leads from one to the other. */
export function describeMatrix(stage: () => HostWithProject): void {
  async function build({ servers }: HostWithProject, branch: Branch, part: 'base' | 'here' | 'there') {
    const owner = await connect(servers.host, 'direct', branch, 'owner');
    for (const [n, found] of CASES.entries()) {
      const sql = found[part]?.replaceAll('%s', schemaOf(n));
      if (part === 'base') await owner.query(`CREATE SCHEMA ${schemaOf(n)}`);
      if (sql) await owner.query(`SET search_path = ${schemaOf(n)}`);
      if (sql) await owner.query(sql).catch((error) => expect.fail(`${found.name}: ${error.message}`));
    }
    await owner.end();
  }

  async function linesOf({ servers }: HostWithProject, branch: Branch): Promise<string[]> {
    const owner = await connect(servers.host, 'direct', branch, 'owner');
    const lines = await catalogLines(owner, { rights: true });
    await owner.end();
    return lines;
  }

  /** A client that writes until the change is over. @returns how often it has committed */
  async function write(
    { servers, main }: HostWithProject,
    tables: readonly string[],
    first: number,
    { isOver, waits, failures }: { isOver: () => boolean; waits: number[]; failures: string[] },
  ): Promise<number> {
    const session = await connect(servers.host, 'direct', main, 'owner');
    let committed = 0;
    for (let n = first; !isOver(); n += 7) {
      const table = tables[n % tables.length];
      const began = performance.now();
      try {
        await session.query(`BEGIN; LOCK TABLE ${table} IN ROW EXCLUSIVE MODE`);
        waits.push(performance.now() - began);
        await session.query('INSERT INTO public.tally VALUES (1); SELECT pg_sleep(0.005); COMMIT');
        committed += 1;
      } catch (error) {
        const { code = '', message } = error as Error & { code?: string };
        if (!GONE.has(code)) failures.push(`${table}: ${message}`);
        await session.query('ROLLBACK');
      }
    }
    await session.end();
    return committed;
  }

  test.runIf(IS_NIGHTLY)(
    `${CASES.length} kinds of change are applied while ${CLIENTS} clients lock for writing`,
    async () => {
      const made = await makeProject(stage().servers, 'db_kinds', 'CREATE TABLE tally (n int)');
      const { host } = made.servers;
      await build(made, made.main, 'base');
      const branch = await made.project.create('db_kinds_br_here', 'db_kinds');
      await build(made, made.main, 'there');
      await build(made, branch, 'here');
      const { project_id, branch_id, database } = made.main;
      const ofMain = { project_id, branch_id, database };
      const { schema: difference } = await runOperation(host, 'branch.diff', {
        project_id,
        branch_id: branch.branch_id,
        database: branch.database,
        against: { branch_id, database },
        job_id: null,
        rows: false,
        schema: true,
        within: 60_000,
      });
      const sql = difference?.statements.map((statement) => `${statement};`).join('\n') ?? '';
      const planned = await runOperation(host, 'change.plan', { ...ofMain, sql, branch: null });
      const rehearsed = await runOperation(host, 'change.rehearse', {
        ...ofMain,
        job_id: randomUUID(),
        source: database,
        busy_wait: 10_000,
        steps: planned.steps,
      });
      expect(rehearsed.error).toBeNull();

      const owner = await connect(host, 'direct', made.main, 'owner');
      const { rows: tables } = await owner.query<{ name: string }>(
        `SELECT format('%I.%I', nspname, relname) AS name FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
         WHERE nspname LIKE 'case\\_%' AND relkind IN ('r', 'p')`,
      );
      const names = tables.map(({ name }) => name);
      let isOver = false;
      const seen = { isOver: () => isOver, waits: [] as number[], failures: [] as string[] };
      const clients = Array.from({ length: CLIENTS }, (_, client) => write(made, names, client, seen));
      const applied = await runOperation(host, 'change.apply', {
        ...ofMain,
        change_id: randomUUID(),
        job_id: randomUUID(),
        steps: planned.steps.map((step, at) => ({
          ...step,
          is_bounded: (rehearsed.steps[at]?.locks.length ?? 0) > 0,
          schema: rehearsed.steps[at]?.schema ?? null,
        })),
        done: 0,
        schema: planned.schema,
        lock_timeout_ms: LOCK_TIMEOUT_MS,
        attempts: 20,
        budget_ms: BUDGET_MS,
      }).finally(() => {
        isOver = true;
      });
      const committed = (await Promise.all(clients)).reduce((sum, count) => sum + count, 0);
      expect(applied).toMatchObject({ reason: null, error: null, schema: rehearsed.schema_after });
      expect(applied.done).toBe(planned.steps.length);
      expect(seen.failures).toEqual([]);
      const { rows: tally } = await owner.query('SELECT count(*)::int AS n FROM tally');
      await owner.end();
      expect(tally).toEqual([{ n: committed }]);
      expect(committed).toBeGreaterThan(CLIENTS * 10);

      // By a reader that the product does not have.
      const left = differentLines(await linesOf(made, made.main), await linesOf(made, branch));
      const allowed = [...COLUMN_ORDERS, ...REWRITTEN];
      const namesLeft = left.map((line) => CASES[Number(/case_(\d+)_/.exec(line)?.[1] ?? -1)]?.name ?? line);
      expect(namesLeft.filter((name) => !allowed.includes(name))).toEqual([]);
      const longest = Math.round(Math.max(...seen.waits));
      console.info(
        `${planned.steps.length} steps, ${committed} transactions, the longest wait ${longest} ms`,
      );
      expect(longest).toBeLessThanOrEqual(LOCK_TIMEOUT_MS + BUDGET_MS + SLACK_MS);
      await made.project.remove();
    },
  );
}
