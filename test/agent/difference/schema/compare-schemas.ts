import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { compareWithStored, storeSchemaOf } from '../../../../agent/difference/schema/compare-schemas.ts';
import { withComparisonLogin } from '../../../../agent/difference/schema/comparison-login.ts';
import { withLocks } from '../../../../agent/postgres/locks.ts';
import { dropUnusedRoles } from '../../../../agent/postgres/unused-roles.ts';
import { dropLeftovers } from '../../../../agent/snapshots/snapshot-databases.ts';
import { ROOT } from '../../../../dev/build/repository.ts';
import { groupName, loginName } from '../../../../shared/branch/login.ts';
import { catalogLines, differentLines } from '../../../support/catalog-lines.ts';
import { eventually } from '../../../support/eventually.ts';
import { killDumps } from '../../../support/host/dump-processes.ts';
import type { TestHost } from '../../../support/host/host.ts';
import { schemaDifference } from '../../../support/host/host-differences.ts';
import {
  asClient,
  type Branch,
  connect,
  type HostWithProject,
  makeProject,
  removeProjects,
} from '../../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../../support/nightly.ts';
import { CATALOG_CASES, COLUMN_ORDERS, ONE_WAY, REWRITTEN } from './catalog-cases.ts';
import { REPORTED_CASES, SCHEMA_CASES, type SchemaCase } from './schema-cases.ts';

const WITHIN_MS = 60_000;

/** Constructs of public projects, in texts of our own. */
const PUBLIC_SCHEMAS = ['code-forge', 'rest-service', 'social-network', 'forum', 'map'] as const;

export function describeSchemas(servers: () => TestHost): void {
  let stage: HostWithProject;
  let here: Branch;
  let there: Branch;

  const ALL: readonly SchemaCase[] = [...SCHEMA_CASES, ...REPORTED_CASES, ...CATALOG_CASES];
  const schemaOf = (n: number) => `case_${n}_`;
  const namesIn = (texts: readonly string[]) =>
    new Set(texts.flatMap((text) => ALL[Number(/case_(\d+)_/.exec(text)?.[1] ?? -1)]?.name ?? []));

  /** Runs the SQL of each case in its own schema, as the owner. */
  async function build(branch: Branch, part: 'base' | 'here' | 'there') {
    const owner = await connect(stage.servers.host, 'direct', branch, 'owner');
    try {
      for (const [n, found] of ALL.entries()) {
        const sql = found[part]?.replaceAll('%s', schemaOf(n));
        if (part === 'base') await owner.query(`CREATE SCHEMA ${schemaOf(n)}`);
        if (sql) await owner.query(`SET search_path = ${schemaOf(n)}`);
        if (sql) await owner.query(sql).catch((error) => expect.fail(`${found.name}: ${error.message}`));
      }
    } finally {
      await owner.end();
    }
  }

  const differenceFromTo = (before: Branch, after: Branch) =>
    schemaDifference(stage.servers.host, before, after);

  /** Runs the statements one after the other as the owner. @returns the failures */
  async function apply(branch: Branch, statements: readonly string[]): Promise<string[]> {
    const owner = await connect(stage.servers.host, 'direct', branch, 'owner');
    const failures: string[] = [];
    for (const statement of statements)
      await owner.query(statement).catch((error) => failures.push(`${error.message}: ${statement}`));
    await owner.end();
    return failures;
  }

  /** What the catalogs say, by a reader that the product does not have. */
  async function linesOf(branch: Branch): Promise<string[]> {
    const client = await connect(stage.servers.host, 'direct', branch, 'owner');
    try {
      return await catalogLines(client, { rights: true });
    } finally {
      await client.end();
    }
  }

  beforeAll(async () => {
    stage = await makeProject(servers(), 'db_cases', 'SELECT');
    await build(stage.main, 'base');
    here = await stage.project.create('db_cases_br_here', 'db_cases');
    there = await stage.project.create('db_cases_br_there', 'db_cases');
    await build(here, 'here');
    await build(there, 'there');
  });
  afterAll(() => removeProjects(stage.servers));

  test('each change is found and named, and the statements leave the catalogs of the branch', async () => {
    expect(ALL.length).toBeGreaterThanOrEqual(165);
    for (const [from, to, direction] of firstByDay(1, [
      [there, here, 'forward'],
      [here, there, 'backward'],
    ] as const)) {
      const wanted = await linesOf(to);
      const inCatalogs = namesIn(differentLines(await linesOf(from), wanted));
      const unseen = ALL.filter(({ name }) => !inCatalogs.has(name)).map(({ name }) => name);
      // The reader of the tests sees each of them.
      expect(unseen).toEqual([]);

      const { changes, statements, not_modelled, ...proof } = await differenceFromTo(from, to);
      const named = namesIn(changes.map(({ identity }) => identity));
      expect(ALL.filter(({ name }) => !named.has(name)).map(({ name }) => name)).toEqual([]);
      const expected = direction === 'forward' ? COLUMN_ORDERS : [...COLUMN_ORDERS, ...ONE_WAY];
      expect([...namesIn(not_modelled)].sort()).toEqual([...expected].sort());
      expect(proof).toEqual({ schema_proven: false, unproven_reason: 'not_modelled' });

      const clone = await stage.project.create('db_cases_br_clone', from.database);
      expect(await apply(clone, statements)).toEqual([]);
      const left = namesIn(differentLines(await linesOf(clone), wanted));
      const allowed = [...expected, ...REWRITTEN];
      expect([...left].filter((name) => !allowed.includes(name))).toEqual([]);
      await stage.project.drop(clone);
    }
  });

  test('a table that begins to inherit keeps its rows, and a column of another type too', async () => {
    const branch = await stage.project.create('db_cases_br_rows', null);
    const changed = await stage.project.create('db_cases_br_changed', null);
    const base =
      'CREATE TABLE kind (id int NOT NULL); CREATE TABLE special (id int NOT NULL, n int); INSERT INTO special VALUES (1, 2)';
    await asClient(stage.servers.host, 'direct', branch, 'owner', base);
    await asClient(
      stage.servers.host,
      'direct',
      changed,
      'owner',
      `${base}; ALTER TABLE special INHERIT kind; ALTER TABLE special ALTER n TYPE text`,
    );
    const { statements, ...rest } = await differenceFromTo(branch, changed);
    expect(rest).toMatchObject({ not_modelled: [], schema_proven: true, unproven_reason: null });
    expect(await apply(branch, statements)).toEqual([]);
    expect(await asClient(stage.servers.host, 'direct', branch, 'owner', 'SELECT * FROM special')).toEqual([
      { id: 1, n: '2' },
    ]);
    for (const made of [branch, changed]) await stage.project.drop(made);
  });

  test.each(firstByDay(2, PUBLIC_SCHEMAS))(
    'a schema like that of a %s is brought to an empty branch, and taken back',
    async (name) => {
      const { host } = stage.servers;
      const empty = await stage.project.create('db_cases_br_empty', null);
      const full = await stage.project.create('db_cases_br_full', null);
      await asClient(
        host,
        'direct',
        full,
        'owner',
        readFileSync(join(ROOT, `test/support/schemas/${name}.sql`), 'utf8'),
      );
      const none = await linesOf(empty);
      const all = await linesOf(full);
      const made = await differenceFromTo(empty, full);
      expect(made).toMatchObject({ not_modelled: [], schema_proven: true, unproven_reason: null });
      expect(await apply(empty, made.statements)).toEqual([]);
      expect(differentLines(await linesOf(empty), all)).toEqual([]);
      const equal = {
        changes: [],
        statements: [],
        not_modelled: [],
        schema_proven: true,
        unproven_reason: null,
      };
      expect(await differenceFromTo(empty, full)).toEqual(equal);
      await stage.project.drop(empty);
      const fresh = await stage.project.create('db_cases_br_fresh', null);
      const dropped = await differenceFromTo(full, fresh);
      expect(dropped).toMatchObject({ not_modelled: [], schema_proven: true });
      expect(await apply(full, dropped.statements)).toEqual([]);
      expect(differentLines(await linesOf(full), none)).toEqual([]);
      for (const branch of [fresh, full]) await stage.project.drop(branch);
    },
  );

  test('a unique key of a partitioned table holds where the statements were applied', async () => {
    const { host } = stage.servers;
    const branch = await stage.project.create('db_cases_br_keys', null);
    const full = await stage.project.create('db_cases_br_parts', null);
    const owner = (sql: string) => asClient(host, 'direct', branch, 'owner', sql);
    const events = readFileSync(join(ROOT, 'test/agent/transfer/schemas/partitioned-keys.sql'), 'utf8');
    await asClient(host, 'direct', full, 'owner', events);
    const { statements, ...rest } = await differenceFromTo(branch, full);
    expect(rest).toMatchObject({ not_modelled: [], schema_proven: true });
    expect(await apply(branch, statements)).toEqual([]);
    const insert = "insert into event (id, at) overriding system value values (1, '2025-12-02')";
    await owner(insert);
    await expect(owner(insert)).rejects.toMatchObject({ code: '23505' });
    const upsert = `${insert} on conflict (id, at) do update set note = 'again' returning note`;
    expect(await owner(upsert)).toEqual([{ note: 'again' }]);
    for (const made of [branch, full]) await stage.project.drop(made);
  });

  test('nothing is left of a comparison, and what a killed one left is removed', async () => {
    const { host, query } = stage.servers;
    const left = () =>
      query(
        "SELECT rolname FROM pg_roles WHERE rolvaliduntil IS NOT NULL UNION ALL SELECT datname FROM pg_database WHERE datname ~ '^bgproof_'",
      );
    await differenceFromTo(stage.main, here);
    expect(await left()).toEqual([]);
    const id = '0123456789abcdef0123456789abcdef';
    await query(`CREATE DATABASE bgproof_${id}`);
    await query(
      `CREATE ROLE u_${id}_query LOGIN VALID UNTIL '2000-01-01'; GRANT CONNECT ON DATABASE ${here.database} TO u_${id}_query`,
    );
    await dropLeftovers(host);
    await withLocks(host.sessions, [], dropUnusedRoles);
    expect(await left()).toEqual([]);
  });

  test('a comparison whose pg_dump is killed can be repeated, and leaves nothing', async () => {
    const { host, query } = stage.servers;
    const branch = await stage.project.create('db_cases_br_held', null);
    const owner = await connect(host, 'direct', branch, 'owner');
    await owner.query('CREATE TABLE held (id int)');
    await owner.query('BEGIN; LOCK TABLE held');
    const compared = differenceFromTo(branch, stage.main);
    compared.catch(() => {});
    await killDumps(host.settings);
    await expect(compared).rejects.toMatchObject({ code: 'HOST_BUSY' });
    await owner.end();
    expect((await differenceFromTo(branch, stage.main)).changes).toContainEqual(
      expect.objectContaining({ identity: 'public.held', change: 'dropped' }),
    );
    expect(await query('SELECT rolname FROM pg_roles WHERE rolvaliduntil IS NOT NULL')).toEqual([]);
    await stage.project.drop(branch);
  });

  test('statements that are not tried, because the tenant or the host tries others, are marked', async () => {
    const { host, query } = stage.servers;
    const of = async (locks: Parameters<typeof withLocks>[1]) =>
      withLocks(host.sessions, locks, () => differenceFromTo(stage.main, here));
    const untried = { schema_proven: false, unproven_reason: 'busy', not_modelled: [] };
    await query("UPDATE project SET tenant = 'several' WHERE project_id = $1", [stage.project.id]);
    for (const locks of [['proof:tenant several'], ['proof:0', 'proof:1']] as const)
      expect(await of([...locks])).toMatchObject(untried);
    const tried = await of(['proof:tenant another', 'proof:0']);
    expect(tried.unproven_reason).not.toBe('busy');
    await query('UPDATE project SET tenant = project_id::text WHERE project_id = $1', [stage.project.id]);
  });

  test('comparisons of one database at the same time get their rights, and leave none', async () => {
    const { host, query } = stage.servers;
    let made = 0;
    const compare = () =>
      withComparisonLogin(host, stage.project.id, [here.database], async () => {
        made += 1;
      });
    for (let round = 0; round < 3; round += 1) await Promise.all(Array.from({ length: 20 }, compare));
    expect(made).toBe(60);
    expect(await query('SELECT rolname FROM pg_roles WHERE rolvaliduntil IS NOT NULL')).toEqual([]);
  });

  test('a schema that is too long is refused, and the next comparison works', async () => {
    const { host } = stage.servers;
    const owner = await connect(host, 'direct', there, 'owner');
    await owner.query(`BEGIN; CREATE SCHEMA huge; SET LOCAL search_path = huge; DO $$ BEGIN FOR n IN 1..18 LOOP
    EXECUTE format('CREATE FUNCTION f%s() RETURNS text LANGUAGE plpgsql AS %L', n,
      'BEGIN RETURN 1; /*' || repeat('x', 1000000) || '*/ END');
    END LOOP; END $$; COMMIT`);
    await expect(storeSchemaOf(host, there, AbortSignal.timeout(WITHIN_MS))).rejects.toMatchObject({
      code: 'STATEMENT_REFUSED',
      sqlstate: '54000',
    });
    await owner.query('DROP SCHEMA huge CASCADE');
    await owner.end();
  });

  test('a branch is compared with its stored schema', async () => {
    const { host } = stage.servers;
    const signal = AbortSignal.timeout(240_000);
    const branch = await stage.project.create('db_cases_br_before', null);
    const stored = await eventually(() => storeSchemaOf(host, branch, signal));
    // Of the roles of the host, it has those of the project only.
    expect(stored).toContain(groupName(stage.project.id, 'owner'));
    expect(stored).not.toContain(loginName(here.branch_id, 'owner'));
    const equal = {
      changes: [],
      statements: [],
      not_modelled: [],
      schema_proven: true,
      unproven_reason: null,
    };
    if (IS_NIGHTLY)
      expect(await eventually(() => compareWithStored(host, branch, stored, signal))).toEqual(equal);
    expect(await apply(branch, ['CREATE TABLE book (id integer)'])).toEqual([]);
    expect(await eventually(() => compareWithStored(host, branch, stored, signal))).toMatchObject({
      changes: [{ kind: 'table', identity: 'public.book', change: 'added' }],
      not_modelled: [],
      schema_proven: true,
    });
  });
}
