import { afterAll, beforeAll, expect, test } from 'vitest';
import {
  catalogQuery,
  compareSchemas,
  compareWithStored,
  storeSchemaOf,
} from '../../../../agent/difference/schema/compare-schemas.ts';
import { planSchemas, readSchema } from '../../../../agent/difference/schema/plan-schemas.ts';
import { inBranch } from '../../../../agent/rows/branch-session.ts';
import { groupName, loginName } from '../../../../shared/branch/login.ts';
import type { SchemaDifference } from '../../../../shared/protocol/difference-operations.ts';
import { eventually } from '../../../support/eventually.ts';
import type { TestHost } from '../../../support/host/host.ts';
import {
  type Branch,
  connect,
  type HostWithProject,
  makeProject,
  removeProjects,
} from '../../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../../support/nightly.ts';
import { REPORTED_CASES, SCHEMA_CASES, type SchemaCase } from './schema-cases.ts';

export function describeSchemas(servers: () => TestHost): void {
  let stage: HostWithProject;
  let here: Branch;
  let there: Branch;

  const schemaOf = (n: number) => `case_${n}_`;
  const ALL = [...SCHEMA_CASES, ...REPORTED_CASES];
  const indexOf = (name: string) => SCHEMA_CASES.findIndex((found) => found.name === name);

  /** Runs the SQL of each case in its own schema, as the owner. */
  async function build(branch: Branch, cases: readonly SchemaCase[], part: 'base' | 'here' | 'there') {
    const owner = await connect(stage.servers.host, 'direct', branch, 'owner');
    try {
      for (const [n, found] of cases.entries()) {
        const sql = found[part]?.replaceAll('%s', schemaOf(n));
        if (part === 'base') await owner.query(`CREATE SCHEMA ${schemaOf(n)}`);
        if (sql) await owner.query(`SET search_path = ${schemaOf(n)}`);
        if (sql) await owner.query(sql).catch((error) => expect.fail(`${found.name}: ${error.message}`));
      }
    } finally {
      await owner.end();
    }
  }

  /**
   * What leads from one schema to the other, without the thread: it would load the program for each comparison.
   */
  async function planFromTo(before: Branch, after: Branch): Promise<SchemaDifference> {
    const { host } = stage.servers;
    const read = (side: Branch) =>
      inBranch(host, side, 'query', (session) => readSchema(catalogQuery(session)));
    return planSchemas(await read(before), await read(after));
  }

  /** Runs the statements one after the other as the owner. @returns the failures */
  async function apply(branch: Branch, statements: readonly string[]): Promise<string[]> {
    const owner = await connect(stage.servers.host, 'direct', branch, 'owner');
    const failures: string[] = [];
    for (const statement of statements)
      await owner.query(statement).catch((error) => failures.push(`${error.message}: ${statement}`));
    await owner.end();
    return failures;
  }

  beforeAll(async () => {
    stage = await makeProject(servers(), 'db_cases', 'SELECT');
    await build(stage.main, ALL, 'base');
    here = await stage.project.create('db_cases_br_here', 'db_cases');
    there = await stage.project.create('db_cases_br_there', 'db_cases');
    await build(here, ALL, 'here');
    await build(there, ALL, 'there');
  });
  afterAll(() => removeProjects(stage.servers));

  test('at least 60 kinds of change have statements that leave no difference', async () => {
    expect(SCHEMA_CASES.length).toBeGreaterThanOrEqual(60);
    const first = SCHEMA_CASES.length;
    for (const [from, to] of firstByDay(1, [
      [there, here],
      [here, there],
    ] as const)) {
      const { changes, statements, not_modelled } = await planFromTo(from, to);
      const identities = changes.map(({ identity }) => identity).join('\n');
      const unfound = ALL.filter((_, n) => !identities.includes(schemaOf(n))).map(({ name }) => name);
      expect(unfound).toEqual([]);

      // What has no statement is reported, and nothing else is.
      if (to === here) expect(not_modelled).toHaveLength(REPORTED_CASES.length);
      const reported = new Set(not_modelled.map((text) => Number(/case_(\d+)_/.exec(text)?.[1])));
      for (const n of reported) expect(n).toBeGreaterThanOrEqual(first);

      // A table that begins or ends to inherit keeps its rows.
      const dropsTable = (name: string) =>
        statements.some((text) => text.startsWith(`DROP TABLE "${schemaOf(indexOf(name))}"."special"`));
      expect(dropsTable('inheritance with the same columns')).toBe(false);
      expect(dropsTable('inheritance from another table, which is new')).toBe(false);

      const clone = await stage.project.create('db_cases_br_clone', from.database);
      expect(await apply(clone, statements)).toEqual([]);
      const leftOver = (await planFromTo(clone, to)).changes.map(({ identity }) => identity);
      expect(leftOver.filter((identity) => !not_modelled.some((text) => text.includes(identity)))).toEqual(
        [],
      );
      await stage.project.drop(clone);
    }
  });

  test('a schema that is too long is refused, and the next comparison works', async () => {
    const { host } = stage.servers;
    const signal = AbortSignal.timeout(60_000);
    const owner = await connect(host, 'direct', there, 'owner');
    await owner.query(`BEGIN; CREATE SCHEMA huge; SET LOCAL search_path = huge; DO $$ BEGIN FOR n IN 1..18 LOOP
    EXECUTE format('CREATE FUNCTION f%s() RETURNS text LANGUAGE plpgsql AS %L', n,
      'BEGIN RETURN 1; /*' || repeat('x', 1000000) || '*/ END');
    END LOOP; END $$; COMMIT`);
    await expect(storeSchemaOf(host, there, signal)).rejects.toMatchObject({
      code: 'STATEMENT_REFUSED',
      sqlstate: '54000',
    });
    await owner.query('DROP SCHEMA huge CASCADE');
    await owner.end();
  });

  test('the agent compares two branches in a thread, and a branch with its stored schema', async () => {
    const { host } = stage.servers;
    const signal = AbortSignal.timeout(240_000);
    const before = await stage.project.create('db_cases_br_before', null);
    const after = await stage.project.create('db_cases_br_after', null);
    expect(await apply(after, ['CREATE TABLE book (id integer)'])).toEqual([]);
    // Sessions last seven seconds, and on a busy machine a thread can take longer than that to load the sources.
    const difference = await eventually(() => compareSchemas(host, { before, after }, signal));
    expect(difference).toMatchObject({
      changes: [{ kind: 'table', identity: 'public.book', change: 'added' }],
      not_modelled: [],
    });
    const stored = await eventually(() => storeSchemaOf(host, before, signal));
    // Of the roles of the host, it has those of the project only.
    expect(stored).toContain(groupName(stage.project.id, 'owner'));
    expect(stored).not.toContain(loginName(after.branch_id, 'owner'));
    expect(await eventually(() => compareWithStored(host, after, stored, signal))).toEqual(difference);
    if (!IS_NIGHTLY) return;
    const nothing = { changes: [], statements: [], not_modelled: [] };
    expect(await eventually(() => compareWithStored(host, before, stored, signal))).toEqual(nothing);
  });
}
