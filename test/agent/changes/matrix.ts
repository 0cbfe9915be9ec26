import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { connect, type HostWithProject } from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { REPORTED_CASES, SCHEMA_CASES } from '../difference/schema/schema-cases.ts';

const CLIENTS = 20;
const LOCK_TIMEOUT_MS = 500;
const BUDGET_MS = 2_000;
const SLACK_MS = 200;

const CASES = [...SCHEMA_CASES, ...REPORTED_CASES];
const schemaOf = (n: number) => `case_${n}_`;

/** SQLSTATEs of a table that the change has renamed, dropped or made again. */
const GONE = new Set(['42P01', '3F000', '42809']);

export function describeMatrix(stage: () => HostWithProject): void {
  test.runIf(IS_NIGHTLY)(
    `${CASES.length} kinds of change are applied while ${CLIENTS} clients lock for writing`,
    async () => {
      const { servers, main } = stage();
      const { host } = servers;
      const { project_id, branch_id, database } = main;
      const ofMain = { project_id, branch_id, database };
      const owner = await connect(host, 'direct', main, 'owner');
      for (const [n, { base, there }] of CASES.entries()) {
        await owner.query(`CREATE SCHEMA ${schemaOf(n)}; SET search_path = ${schemaOf(n)}`);
        for (const sql of [base, there]) if (sql) await owner.query(sql.replaceAll('%s', schemaOf(n)));
      }
      const { rows: tables } = await owner.query<{ name: string }>(
        `SELECT format('%I.%I', nspname, relname) AS name FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace
       WHERE nspname LIKE 'case\\_%' AND relkind IN ('r', 'p')`,
      );
      const sql = CASES.map(({ here }, n) =>
        [
          `SET search_path = ${schemaOf(n)}`,
          ...(here ? [here.replace(' COMMIT;', '').replaceAll('%s', schemaOf(n))] : []),
        ].join(';\n'),
      ).join(';\n');
      const planned = await runOperation(host, 'change.plan', { ...ofMain, sql });
      const rehearsed = await runOperation(host, 'change.rehearse', {
        ...ofMain,
        job_id: randomUUID(),
        source: database,
        busy_wait: 10_000,
        steps: planned.steps,
      });
      expect(rehearsed.error).toBeNull();

      let isOver = false;
      const waits: number[] = [];
      const failures: string[] = [];
      const clients = Array.from({ length: CLIENTS }, async (_, client) => {
        const session = await connect(host, 'direct', main, 'owner');
        for (let n = client; !isOver; n += 7) {
          const table = tables[n % tables.length]?.name ?? '';
          const began = performance.now();
          try {
            await session.query(`BEGIN; LOCK TABLE ${table} IN ROW EXCLUSIVE MODE`);
            waits.push(performance.now() - began);
            await session.query('SELECT pg_sleep(0.005); COMMIT');
          } catch (error) {
            const { code = '', message } = error as Error & { code?: string };
            if (!GONE.has(code)) failures.push(`${table}: ${message}`);
            await session.query('ROLLBACK');
          }
        }
        await session.end();
      });
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
      });
      isOver = true;
      await Promise.all(clients);
      await owner.end();
      expect(applied).toMatchObject({
        reason: null,
        error: null,
        done: planned.steps.length,
        schema: rehearsed.schema_after,
      });
      expect(failures).toEqual([]);
      expect(waits.length).toBeGreaterThan(CLIENTS * 10);
      expect(Math.max(...waits)).toBeLessThanOrEqual(LOCK_TIMEOUT_MS + BUDGET_MS + SLACK_MS);
      console.info(`${waits.length} locks of clients, the longest wait ${Math.round(Math.max(...waits))} ms`);
    },
  );
}
