import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { examine } from '../../../agent/maintenance/examine.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { refusedStatement, writeExtensions } from '../../../agent/postgres/extensions.ts';
import { extensionsFolder } from '../../../agent/process/settings.ts';
import { loginName } from '../../../shared/branch/login.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, type Branch, connect, Project } from '../../support/host/host-project.ts';

/** `vector` is reviewed and not installed; `postgres_fdw` is installed and not reviewed. */
const EXTENSIONS = 'bloom,moddatetime,vector,postgres_fdw';

let servers: TestHost;
let project: Project;
let main: Branch;
let owner: pg.Client;

beforeAll(async () => {
  servers = await startHost({ settings: { EXTENSIONS } });
  project = new Project(servers.host);
  main = await project.create('db_extended_prod', null);
});
afterAll(() => servers.stop());

test('an extension of the list is made by the owner, works, and is cloned', async () => {
  await asClient(
    servers.host,
    'direct',
    main,
    'owner',
    `CREATE EXTENSION bloom; CREATE EXTENSION moddatetime;
     CREATE TABLE item (n int, at timestamp DEFAULT 'epoch');
     INSERT INTO item SELECT generate_series(1, 100);
     CREATE INDEX item_bloom ON item USING bloom (n);
     CREATE TRIGGER at BEFORE UPDATE ON item FOR EACH ROW EXECUTE FUNCTION moddatetime(at)`,
  );
  const clone = await project.create('db_extended_prod_br_one', 'db_extended_prod');
  const client = await connect(servers.host, 'direct', clone, 'owner');
  await client.query('SET enable_seqscan = off; UPDATE item SET n = 7 WHERE n = 7');
  const { rows } = await client.query("SELECT at > 'epoch' AS is_new FROM item WHERE n = 7");
  expect(rows).toEqual([{ is_new: true }]);
  await client.end();
  await asClient(
    servers.host,
    'direct',
    clone,
    'owner',
    'DROP EXTENSION bloom CASCADE; CREATE EXTENSION bloom',
  );
  await project.drop(clone);
});

test.each(['postgres_fdw', 'dblink', 'file_fdw', 'plperlu', 'pageinspect', 'vector'])(
  '%s is refused',
  async (name) => {
    const creation = asClient(servers.host, 'direct', main, 'owner', `CREATE EXTENSION ${name}`);
    await expect(creation).rejects.toThrow(
      name === 'vector' ? 'is not available' : 'permission denied to create extension',
    );
  },
);

test.each(['read_write', 'read_only'] as const)('the %s login creates none', async (role) => {
  const creation = asClient(servers.host, 'direct', main, role, 'CREATE EXTENSION moddatetime SCHEMA public');
  await expect(creation).rejects.toThrow();
});

test('the list names what owners can create, and doctor what they cannot', async () => {
  const { extensions } = await runOperation(servers.host, 'host.extensions', {});
  const trusted = Object.fromEntries(extensions.map(({ name, trusted }) => [name, trusted]));
  expect(trusted).toMatchObject({ bloom: true, moddatetime: true, pgcrypto: true, postgres_fdw: false });
  expect(extensions.map(({ name }) => name)).toEqual(Object.keys(trusted));
  const { findings } = await examine(servers.host);
  const sentences = findings.map(({ sentence }) => sentence).join('\n');
  expect(sentences).toMatch(
    /vector: it is not installed on this host; postgres_fdw: it is not one of the reviewed/,
  );
  expect(sentences).not.toContain('extension_control_path');
});

/**
 * Moves a sequence if a superuser runs it, which no ROLLBACK takes back, and tries to make the owner one. Each
 * attack makes an object that calls it, where the script might find it.
 */
const TRAP = (login: string) => `
  CREATE SEQUENCE public.trap;
  CREATE FUNCTION public.spring() RETURNS int LANGUAGE plpgsql AS $f$
  BEGIN
    IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
      PERFORM pg_catalog.nextval('public.trap');
      EXECUTE 'ALTER ROLE "${login}" SUPERUSER';
    END IF;
    RETURN 1;
  END $f$`;

const plain = (signature: string, returns: string) =>
  `CREATE FUNCTION ${signature} RETURNS ${returns} LANGUAGE plpgsql AS 'BEGIN PERFORM public.spring(); RETURN NULL; END'`;
const operator = (name: string, type: string) =>
  `${plain(`target.op(${type}, ${type})`, 'boolean')}; CREATE OPERATOR target.${name} (LEFTARG = ${type}, RIGHTARG = ${type}, FUNCTION = target.op)`;

interface Attack {
  before?: string;
  create?: string;
}

/** The schema `target` belongs to the owner. */
const ATTACKS: Record<string, Attack> = {
  'an operator = of integers': { before: operator('=', 'int4') },
  'an operator = of texts': { before: operator('=', 'text') },
  'an operator = of any element': { before: operator('=', 'anyelement') },
  'a function hashint4': { before: plain('target.hashint4(int4)', 'int4') },
  'a function hashtext': { before: plain('target.hashtext(text)', 'int4') },
  'a variadic function': { before: plain('target.hashint4(VARIADIC int4[])', 'int4') },
  'a function of the same name': { before: plain('target.blhandler(text)', 'text') },
  'a type of the name of a built-in one': { before: 'CREATE DOMAIN target.int4 AS text' },
  'a type internal': { before: 'CREATE DOMAIN target.internal AS text' },
  'an operator class of the same name': {
    before: `CREATE TYPE target.own AS (n int); ${plain('target.compare(target.own, target.own)', 'int4')};
      CREATE OPERATOR FAMILY target.int4_ops USING btree`,
  },
  'a cast of an own type': {
    before: `CREATE TYPE target.own AS (n int); ${plain('target.to_int(target.own)', 'int4')};
      CREATE CAST (target.own AS int4) WITH FUNCTION target.to_int(target.own) AS IMPLICIT`,
  },
  'search_path with pg_catalog last': {
    before: `${operator('=', 'int4')}; SET search_path = target, public, pg_catalog`,
  },
  'search_path of the login': {
    before: `${operator('=', 'int4')}; ALTER ROLE SESSION_USER SET search_path = target, pg_catalog`,
  },
  'temporary objects': {
    before:
      'CREATE TEMP TABLE int4 (n int); CREATE DOMAIN pg_temp.text AS varchar; CREATE DOMAIN pg_temp.index_am_handler AS text',
  },
  'default privileges': {
    before:
      'ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO PUBLIC',
  },
  'an event trigger': {
    before: `CREATE FUNCTION target.watch() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN PERFORM public.spring(); END';
      CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION target.watch()`,
  },
  'a schema with a quote in its name': {
    before: `CREATE SCHEMA "t""; SELECT public.spring(); --"`,
    create: `CREATE EXTENSION bloom SCHEMA "t""; SELECT public.spring(); --"`,
  },
  'the schema pg_catalog': { create: 'CREATE EXTENSION bloom SCHEMA pg_catalog' },
  'a version that is a path': { create: `CREATE EXTENSION bloom VERSION '../../../../../tmp/evil'` },
  'a name that is a path': { create: 'CREATE EXTENSION "../../tmp/evil"' },
  'an own extension_control_path': { before: `SET extension_control_path = '/tmp'` },
  'an own folder of libraries': { before: `SET dynamic_library_path = '/tmp'` },
  'own functions of the extension': {
    create: `CREATE EXTENSION bloom SCHEMA target; ${plain('target.later()', 'int4')};
      ALTER EXTENSION bloom ADD FUNCTION target.later(); ALTER EXTENSION bloom UPDATE; ALTER EXTENSION bloom SET SCHEMA public`,
  },
  'another body of its functions': {
    create: `CREATE EXTENSION bloom SCHEMA target; CREATE OR REPLACE FUNCTION target.blhandler(internal) RETURNS index_am_handler LANGUAGE c AS 'bloom', 'other'`,
  },
};

describe('20 attacks and more on the script of an extension', () => {
  beforeAll(async () => {
    await asClient(
      servers.host,
      'direct',
      main,
      'owner',
      `DROP EXTENSION bloom CASCADE; ${TRAP(loginName(main.branch_id, 'owner'))}`,
    );
    owner = await connect(servers.host, 'direct', main, 'owner');
  });
  afterAll(() => owner.end());

  async function isSprung() {
    const [trap] = (await owner.query<{ is_called: boolean }>('SELECT is_called FROM public.trap')).rows;
    const superusers = await servers.query<{ rolname: string }>(
      "SELECT rolname FROM pg_roles WHERE rolsuper AND rolname ~ '^[ug]_'",
    );
    return trap?.is_called === true || superusers.length > 0;
  }

  /** Each part as far as PostgreSQL lets it. */
  async function attack({ before = '', create = 'CREATE EXTENSION bloom SCHEMA target' }: Attack) {
    await owner.query('CREATE SCHEMA target');
    await owner.query(before).catch(() => {});
    await owner.query(create).catch(() => {});
    await owner
      .query(
        'CREATE TABLE target.used (n int4, t text); INSERT INTO target.used VALUES (1, 1); CREATE INDEX ON target.used USING bloom (n, t)',
      )
      .catch(() => {});
  }

  async function cleanUp() {
    await owner.query('RESET ALL; ALTER ROLE SESSION_USER RESET ALL').catch(() => {});
    await owner.query('DISCARD TEMP; DROP EXTENSION IF EXISTS bloom CASCADE; DROP SCHEMA target CASCADE');
  }

  test.each(Object.entries(ATTACKS))('%s gets nothing', async (_, steps) => {
    await attack(steps);
    expect(await isSprung()).toBe(false);
    await cleanUp();
  });

  test('a script that calls a function would be tricked, so it is refused', async () => {
    const script = "SELECT check_version('1');";
    expect(refusedStatement(script)).toContain('select check_version');
    const folder = join(extensionsFolder(servers.settings), 'extension');
    writeFileSync(join(folder, 'naive.control'), "default_version = '1'\nsuperuser = true\ntrusted = true\n");
    writeFileSync(join(folder, 'naive--1.sql'), script);
    await attack({
      before: plain('target.check_version(text)', 'int4'),
      create: 'CREATE EXTENSION naive SCHEMA target',
    });
    expect(await isSprung()).toBe(true);
    await cleanUp();
    // The next start of the agent removes what it has not written.
    await writeExtensions(servers.settings, servers.host.postgres);
    await expect(owner.query('CREATE EXTENSION naive')).rejects.toThrow('is not available');
  });
});
