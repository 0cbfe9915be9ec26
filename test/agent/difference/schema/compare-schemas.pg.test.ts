import { afterAll, beforeAll, expect, test } from 'vitest';
import { catalogQuery } from '../../../../agent/difference/schema/catalog-query.ts';
import { compareSchemas } from '../../../../agent/difference/schema/compare-schemas.ts';
import type { SchemaDifference } from '../../../../agent/difference/schema/schema-record.ts';
import { inBranch } from '../../../../agent/rows/branch-session.ts';
import type { Session } from '../../../../agent/postgres/connect.ts';
import { type Branch, connect, startHostWithProject } from '../../../support/host/host-project.ts';
import { REFUSED_CASES, REPORTED_CASES, SCHEMA_CASES, type SchemaCase } from './schema-cases.ts';

let stage: Awaited<ReturnType<typeof startHostWithProject>>;
let here: Branch;
let there: Branch;

const schemaOf = (n: number) => `case_${n}_`;
const ALL = [...SCHEMA_CASES, ...REPORTED_CASES];

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

/** As the read-only logins of both branches. */
const compare = (left: Branch, right: Branch): Promise<SchemaDifference> => {
  const { host } = stage.servers;
  const inBoth = (action: (a: Session, b: Session) => Promise<SchemaDifference>) =>
    inBranch(host, left, 'query', (a) => inBranch(host, right, 'query', (b) => action(a, b)));
  return inBoth((a, b) => compareSchemas(catalogQuery(a), catalogQuery(b)));
};

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
  stage = await startHostWithProject('db_cases', 'SELECT');
  await build(stage.main, ALL, 'base');
  here = await stage.project.create('db_cases_br_here', 'db_cases');
  there = await stage.project.create('db_cases_br_there', 'db_cases');
  await build(here, ALL, 'here');
  await build(there, ALL, 'there');
});
afterAll(() => stage?.servers.stop());

test('at least 60 kinds of change have statements that leave no difference, in both directions', async () => {
  expect(SCHEMA_CASES.length).toBeGreaterThanOrEqual(60);
  const first = SCHEMA_CASES.length;
  for (const [left, right] of [
    [here, there],
    [there, here],
  ] as const) {
    const { changes, statements, not_modelled } = await compare(left, right);
    const identities = changes.map(({ identity }) => identity).join('\n');
    const unfound = ALL.filter((_, n) => !identities.includes(schemaOf(n))).map(({ name }) => name);
    expect(unfound).toEqual([]);

    // What has no statement is reported, and nothing else is.
    const reported = new Set(not_modelled.map((text) => Number(/case_(\d+)_/.exec(text)?.[1])));
    for (const n of reported) expect(n).toBeGreaterThanOrEqual(first);

    const clone = await stage.project.create('db_cases_br_clone', right.database);
    expect(await apply(clone, statements)).toEqual([]);
    const left_over = (await compare(left, clone)).changes.map(({ identity }) => identity);
    expect(left_over.filter((identity) => !not_modelled.some((text) => text.includes(identity)))).toEqual([]);
    await stage.project.drop(clone);
  }
  // Operators and text search configurations are only made by hand.
  const { not_modelled } = await compare(here, there);
  expect(not_modelled).toHaveLength(REPORTED_CASES.length);
});

test('two branches without a change have no difference', async () => {
  const twin = await stage.project.create('db_cases_br_twin', here.database);
  expect(await compare(here, twin)).toEqual({ changes: [], statements: [], not_modelled: [] });
  await stage.project.drop(twin);
});
