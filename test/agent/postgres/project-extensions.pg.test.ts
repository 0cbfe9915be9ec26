import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { examine } from '../../../agent/maintenance/examine.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { inDatabase } from '../../../agent/postgres/connect.ts';
import { extensionsFolder } from '../../../agent/process/settings.ts';
import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, identity, Project } from '../../support/host/host-project.ts';
import { firstByDay } from '../../support/nightly.ts';
import { installStandIn, STAND_IN_VERSION } from '../../support/stand-in-postgis.ts';

/** `postgis_topology` is none that a project can have, `postgis` is one. */
const PROJECT_EXTENSIONS = 'postgis,postgis_topology';

let servers: TestHost;
let project: Project;
let main: Branch;
beforeAll(async () => {
  servers = await startHost({ settings: { PROJECT_EXTENSIONS } });
  const { settings } = servers;
  const before = [extensionsFolder(settings)];
  await installStandIn(servers, join(settings.STATE_DIR, 'stand-in'), { before });
  await eventually(async () =>
    expect(await servers.query("SELECT FROM pg_available_extensions WHERE name = 'postgis'")).toHaveLength(1),
  );
  project = new Project(servers.host);
  project.extensions = ['postgis'];
  main = await project.create('db_maps_prod', null);
  await asClient(
    servers.host,
    'direct',
    main,
    'owner',
    `CREATE TABLE place (id int PRIMARY KEY, at geometry); INSERT INTO place SELECT n, st_point(n, n) FROM generate_series(1, 20) AS n; ${TRAP(main)}`,
  );
});
afterAll(() => servers?.stop());

/** Moves a sequence, and tries to make the owner one, if a superuser runs it. */
const TRAP = ({ branch_id }: Branch) => `
  CREATE SEQUENCE public.trap;
  CREATE FUNCTION public.spring() RETURNS int LANGUAGE plpgsql AS $f$
  BEGIN
    IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
      PERFORM pg_catalog.nextval('public.trap');
      EXECUTE 'ALTER ROLE "${loginName(branch_id, 'owner')}" SUPERUSER';
    END IF;
    RETURN 1;
  END $f$`;

/** What the extension is, and the rows of its table: the same in each database that carries it. */
const PRINT = `SELECT extversion AS version, extowner::regrole::text AS owner, extnamespace::regnamespace::text AS schema,
    (SELECT md5(string_agg(pg_describe_object(classid, objid, 0), ' ' ORDER BY pg_describe_object(classid, objid, 0))) FROM pg_depend
     WHERE refobjid = pg_extension.oid AND refclassid = 'pg_extension'::regclass AND deptype = 'e') AS members,
    (SELECT md5(string_agg(prosrc || proowner::regrole::text || prosecdef, ' ' ORDER BY proname)) FROM pg_proc JOIN pg_depend ON classid = 'pg_proc'::regclass AND objid = pg_proc.oid
     WHERE refobjid = pg_extension.oid AND deptype = 'e') AS functions,
    (SELECT md5(string_agg(c.relname || c.relowner::regrole::text || coalesce(c.relacl::text, ''), ' ' ORDER BY c.relname)) FROM pg_class AS c JOIN pg_depend ON classid = 'pg_class'::regclass AND objid = c.oid
     WHERE refobjid = pg_extension.oid AND deptype = 'e') AS relations,
    (SELECT count(*)::int FROM public.spatial_ref_sys) AS rows, (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace WHERE nspname = 'public') AS public_owner
  FROM pg_extension WHERE extname = 'postgis'`;

/** As the platform, which no session of the product is in a database with a tenant's objects. */
const printOf = (database: string) =>
  inDatabase(servers.settings, database, async (session) => (await session.query(PRINT)).rows[0]);

const superusers = () => servers.query("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname ~ '^[ug]_'");

test('a project is created with it, and its clones, resets and snapshots carry it', async () => {
  const { host } = servers;
  const print = await printOf(main.database);
  expect(print).toMatchObject({
    version: STAND_IN_VERSION,
    owner: 'branchgate',
    schema: 'public',
    rows: 401,
    public_owner: 'pg_database_owner',
  });
  const works = async (branch: Branch) => {
    expect(await printOf(branch.database)).toEqual(print);
    for (const role of ['owner', 'read_write', 'read_only'] as const)
      expect(
        await asClient(
          host,
          'pooled',
          branch,
          role,
          `SELECT (at).x, (SELECT srtext FROM spatial_ref_sys WHERE srid = 4326), (SELECT count(*)::int FROM geometry_columns) AS columns FROM place WHERE id = 7`,
        ),
      ).toEqual([{ x: 7, srtext: 'system 4326', columns: 1 }]);
    await asClient(
      host,
      'direct',
      branch,
      'owner',
      'CREATE TABLE more (at geometry DEFAULT st_point(1, 2)); INSERT INTO more DEFAULT VALUES; GRANT SELECT ON more TO PUBLIC; DROP TABLE more',
    );
  };
  const clone = await project.create('db_maps_prod_br_one', main.database);
  await works(clone);
  const snapshot_id = randomUUID();
  const about = { project_id: project.id, branch_id: main.branch_id, busy_wait: 1_000 };
  await runOperation(host, 'snapshot.take', {
    ...about,
    snapshot_id,
    source: main.database,
    unless_same_as: null,
  });
  const ofSnapshot = await project.create('db_maps_prod_br_two', snapshotDatabaseName(snapshot_id));
  await works(ofSnapshot);
  await asClient(host, 'direct', clone, 'owner', 'DROP TABLE place');
  const reset = { ...identity(clone), job_id: randomUUID() };
  await runOperation(host, 'reset.clone', { ...reset, source: main.database, busy_wait: 1_000 });
  await runOperation(host, 'reset.swap', { ...reset, snapshot_id: randomUUID() });
  await works(clone);
  const empty = {
    ...about,
    job_id: randomUUID(),
    snapshot_id: randomUUID(),
    keep_tables: [],
    unless_same_as: null,
  };
  await runOperation(host, 'snapshot.mask', { ...empty, source: main.database, masking: null });
  const without = await project.create('db_maps_prod_br_three', snapshotDatabaseName(empty.snapshot_id));
  expect(await printOf(without.database)).toEqual(print);
  for (const branch of [clone, ofSnapshot, without]) await project.drop(branch);
});

test('a repeated call makes nothing again, and a host that lacks it removes what it began', async () => {
  const again = await project.clone(main, null);
  expect(again.created).toBe(false);
  const other = new Project(servers.host);
  other.extensions = ['postgis_topology'];
  const branch = other.plan('db_topology_prod');
  await expect(other.clone(branch, null)).rejects.toThrow('no databases with the extension postgis_topology');
  await other.remove();
  expect(await servers.query(`SELECT FROM project_extensions WHERE project_id = '${other.id}'`)).toEqual([]);
});

test('a branch that differs has statements that are proven, and none about the extension', async () => {
  const branch = await project.create('db_maps_prod_br_schema', main.database);
  await asClient(
    servers.host,
    'direct',
    branch,
    'owner',
    'ALTER TABLE place ADD COLUMN entrance geometry; CREATE FUNCTION near(geometry) RETURNS float8 LANGUAGE sql RETURN ($1).x',
  );
  const { schema } = await runOperation(servers.host, 'branch.diff', {
    project_id: project.id,
    branch_id: branch.branch_id,
    database: branch.database,
    against: { branch_id: main.branch_id, database: main.database },
    job_id: null,
    rows: false,
    schema: true,
    within: 60_000,
  });
  expect(schema).toMatchObject({ schema_proven: true, not_modelled: [] });
  expect(schema?.statements.join()).toMatch(/entrance/);
  expect(schema?.statements.join()).not.toMatch(/EXTENSION|spatial_ref_sys/);
  await project.drop(branch);
});

test('the host reports what it offers, and doctor what it cannot', async () => {
  const { project_extensions } = await runOperation(servers.host, 'host.describe', {});
  expect(project_extensions).toEqual([{ name: 'postgis', version: STAND_IN_VERSION }]);
  const { findings } = await examine(servers.host);
  expect(findings.map(({ sentence }) => sentence).join('\n')).toMatch(/postgis_topology: it is none of/);
});

const plain = (signature: string, returns: string) =>
  `CREATE FUNCTION ${signature} RETURNS ${returns} LANGUAGE plpgsql AS 'BEGIN PERFORM public.spring(); RETURN NULL; END'`;

/** Statements of the owner of a branch that has the extension, each as far as PostgreSQL lets it. */
const ATTACKS: Record<string, readonly string[]> = {
  'drop it': ['DROP EXTENSION postgis', 'DROP EXTENSION postgis CASCADE'],
  'update it': [`ALTER EXTENSION postgis UPDATE TO '9'`, 'ALTER EXTENSION postgis UPDATE'],
  'move it to another schema': ['CREATE SCHEMA own', 'ALTER EXTENSION postgis SET SCHEMA own'],
  'drop the schema': ['DROP SCHEMA public CASCADE'],
  'rename the schema, or take it over': [
    'ALTER SCHEMA public RENAME TO private',
    'ALTER SCHEMA public OWNER TO CURRENT_USER',
    'CREATE SCHEMA public',
  ],
  'create it again': [
    'CREATE SCHEMA own',
    'CREATE EXTENSION postgis SCHEMA own',
    'CREATE EXTENSION IF NOT EXISTS postgis SCHEMA own CASCADE',
  ],
  'create what needs it': ['CREATE EXTENSION postgis_raster', 'CREATE EXTENSION postgis_raster CASCADE'],
  'give it an own function': [
    plain('public.later()', 'int'),
    'ALTER EXTENSION postgis ADD FUNCTION public.later()',
  ],
  'take a function from it': [
    'ALTER EXTENSION postgis DROP FUNCTION public.st_point(float8, float8)',
    'DROP FUNCTION public.st_point(float8, float8) CASCADE',
  ],
  'another body of its function': [
    `CREATE OR REPLACE FUNCTION public.st_estimated(text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS 'BEGIN PERFORM public.spring(); RETURN NULL; END'`,
    'ALTER FUNCTION public.st_estimated(text) SECURITY DEFINER',
    'ALTER FUNCTION public.st_estimated(text) OWNER TO CURRENT_USER',
    'ALTER FUNCTION public.st_estimated(text) SET search_path = public',
  ],
  'run a query by its function with the rights of its owner': [
    `SELECT public.st_estimated('SELECT public.spring()')`,
    `SELECT public.st_estimated('ALTER ROLE CURRENT_USER SUPERUSER')`,
    `SELECT public.st_estimated('COPY public.trap TO PROGRAM ''true''')`,
  ],
  'another type of it': [
    'DROP TYPE public.geometry CASCADE',
    'ALTER TYPE public.geometry ADD ATTRIBUTE z float8',
    'ALTER TYPE public.geometry OWNER TO CURRENT_USER',
  ],
  'drop or change its table': [
    'DROP TABLE public.spatial_ref_sys CASCADE',
    'ALTER TABLE public.spatial_ref_sys ADD COLUMN own int DEFAULT public.spring()',
    'ALTER TABLE public.spatial_ref_sys OWNER TO CURRENT_USER',
    'ALTER TABLE public.spatial_ref_sys SET SCHEMA pg_temp',
  ],
  'change its rows': [
    'DELETE FROM public.spatial_ref_sys',
    `INSERT INTO public.spatial_ref_sys VALUES (9000, 'own')`,
    `UPDATE public.spatial_ref_sys SET srtext = 'own'`,
    'TRUNCATE public.spatial_ref_sys',
    `COPY public.spatial_ref_sys FROM PROGRAM 'echo 9000'`,
  ],
  'a trigger on its table': [
    `CREATE FUNCTION public.fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.spring(); RETURN NULL; END'`,
    'CREATE TRIGGER fires BEFORE INSERT OR UPDATE ON public.spatial_ref_sys FOR EACH STATEMENT EXECUTE FUNCTION public.fires()',
  ],
  'an index on its table, which an analysis evaluates': [
    `CREATE FUNCTION public.indexed(int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN public.spring(); END'`,
    'CREATE INDEX ON public.spatial_ref_sys (public.indexed(srid))',
    'CREATE STATISTICS public.own ON (public.indexed(srid)) FROM public.spatial_ref_sys',
  ],
  'a foreign key to its table, which runs a cast as its owner': [
    'CREATE TYPE public.own AS (n int)',
    `CREATE FUNCTION public.as_int(public.own) RETURNS int LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.spring(); RETURN 4326; END'`,
    'CREATE CAST (public.own AS int) WITH FUNCTION public.as_int(public.own) AS IMPLICIT',
    'CREATE TABLE public.referring (n public.own REFERENCES public.spatial_ref_sys)',
    'INSERT INTO public.referring VALUES (ROW(4326))',
  ],
  'a child or a partition of its table': [
    'CREATE TABLE public.child () INHERITS (public.spatial_ref_sys)',
    'CREATE TABLE public.alike (LIKE public.spatial_ref_sys INCLUDING ALL)',
    'ALTER TABLE public.alike INHERIT public.spatial_ref_sys',
  ],
  'policies of its table': [
    'ALTER TABLE public.spatial_ref_sys ENABLE ROW LEVEL SECURITY',
    'CREATE POLICY own ON public.spatial_ref_sys USING (public.spring() = 1)',
  ],
  'its view': [
    'CREATE OR REPLACE VIEW public.geometry_columns AS SELECT public.spring()::text AS f_table_schema',
    'CREATE OR REPLACE RULE geometry_columns_insert AS ON INSERT TO public.geometry_columns DO INSTEAD SELECT public.spring()',
    'DROP VIEW public.geometry_columns CASCADE',
    'INSERT INTO public.geometry_columns VALUES (1)',
  ],
  'functions and operators in front of those that it uses': [
    plain('public.checked(int)', 'bigint'),
    plain('public.equals(oid, oid)', 'boolean'),
    'CREATE OPERATOR public.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = public.equals)',
    'SELECT * FROM public.geometry_columns',
    'SELECT public.st_point(1, 2)',
  ],
  'the search path of the database': [
    'CREATE SCHEMA own',
    plain('own.checked(int)', 'bigint'),
    `ALTER ROLE SESSION_USER SET search_path = own, public, pg_catalog`,
    `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = own, public', current_database()); END $$`,
  ],
  'what belongs to whom': [
    'DROP OWNED BY CURRENT_USER CASCADE',
    'REASSIGN OWNED BY branchgate TO CURRENT_USER',
  ],
  'default privileges of the platform': [
    'ALTER DEFAULT PRIVILEGES FOR ROLE branchgate GRANT ALL ON TABLES TO PUBLIC',
    'GRANT ALL ON public.spatial_ref_sys TO CURRENT_USER',
    'GRANT branchgate TO CURRENT_USER',
  ],
  'an event trigger': [
    `CREATE FUNCTION public.watches() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.spring(); END'`,
    'CREATE EVENT TRIGGER watches ON ddl_command_end EXECUTE FUNCTION public.watches()',
  ],
  'a comment, a label and a publication': [
    `COMMENT ON EXTENSION postgis IS 'own'`,
    `SECURITY LABEL ON TABLE public.spatial_ref_sys IS 'own'`,
    'CREATE PUBLICATION own FOR TABLE public.spatial_ref_sys',
  ],
};

describe('20 attacks and more on an extension of the project', () => {
  let print: unknown;
  beforeAll(async () => {
    print = await printOf(main.database);
  });

  async function attack(owner: pg.Client, statements: readonly string[]) {
    for (const statement of statements) await owner.query(statement).catch(() => {});
  }

  test.each(firstByDay(8, Object.entries(ATTACKS)))('%s: gets nothing', async (_, statements) => {
    const branch = await project.create('db_maps_prod_br_attacked', main.database);
    const owner = await connect(servers.host, 'direct', branch, 'owner');
    try {
      await attack(owner, statements);
      // What the platform, other logins and autovacuum do next.
      const next = await project.create('db_maps_prod_br_next', branch.database);
      for (const role of ['owner', 'read_only'] as const)
        await asClient(servers.host, 'direct', next, role, 'SELECT count(*) FROM public.spatial_ref_sys');
      await inDatabase(servers.settings, branch.database, (session) =>
        session.query('VACUUM (ANALYZE) public.spatial_ref_sys'),
      );
      for (const { database } of [branch, next]) {
        expect(await printOf(database)).toEqual(print);
        const [trap] = await inDatabase(
          servers.settings,
          database,
          async (session) =>
            (
              await session.query(
                "SELECT coalesce((SELECT last_value FROM pg_sequences WHERE sequencename = 'trap'), 0)::int AS n",
              )
            ).rows,
        );
        expect(trap).toEqual({ n: 0 });
      }
      expect(await superusers()).toEqual([]);
      await project.drop(next);
    } finally {
      await owner.end();
      await project.drop(branch);
    }
  });

  test('its script beside objects of a tenant would be tricked, so it runs in an empty database only', async () => {
    const other = new Project(servers.host);
    const used = await other.create('db_used_prod', null);
    await asClient(
      servers.host,
      'direct',
      used,
      'owner',
      `${TRAP(used)}; ${plain('public.checked(int)', 'bigint').replace('RETURN NULL', 'RETURN $1')}`,
    );
    await inDatabase(servers.settings, used.database, (session) =>
      session.query('CREATE EXTENSION postgis SCHEMA public'),
    ).catch(() => {});
    expect(await superusers()).toHaveLength(1);
    await servers.query(`ALTER ROLE "${loginName(used.branch_id, 'owner')}" NOSUPERUSER`);
    await other.remove();
  });
});
