/**
 * Tries clients on the branch of DATABASE_URL (pooled) and DIRECT_URL, and prints what works as JSON: one object per
 * client and port, with the error of each step that failed.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const WAIT_MS = 5_000;

const within = (work) => {
  const { promise, reject } = Promise.withResolvers();
  const timer = setTimeout(() => reject(new Error(`nothing within ${WAIT_MS} ms`)), WAIT_MS);
  return Promise.race([work, promise]).finally(() => clearTimeout(timer));
};

const expectRows = (rows, count) => {
  if (rows.length !== count) throw new Error(`${rows.length} rows instead of ${count}`);
};

/** The client of Neon, with the two addresses that docs/serverless.md has. */
const neonPackage = async () => {
  const neon = await import('@neondatabase/serverless');
  const { BRANCHGATE_URL, SQL_PORT } = process.env;
  neon.neonConfig.fetchEndpoint = `${BRANCHGATE_URL}/sql`;
  neon.neonConfig.wsProxy = (host, port) => `${host}:${SQL_PORT}/v2?address=${host}:${port}`;
  return neon;
};

const drizzleTable = async (table) => {
  const { pgTable, integer, text } = await import('drizzle-orm/pg-core');
  const { eq, sql } = await import('drizzle-orm');
  return { items: pgTable(table, { id: integer().primaryKey(), name: text() }), eq, sql };
};

/** Each client: opens the URL, and returns its steps and how to close it. Table names differ by client and port. */
const CLIENTS = {
  async pg(url, table) {
    const { default: pg } = await import('pg');
    const pool = new pg.Pool({ connectionString: url, max: 2 });
    return {
      close: () => pool.end(),
      migrate: () => pool.query(`create table ${table} (id int primary key, name text)`),
      query: async () =>
        expectRows((await pool.query(`insert into ${table} values ($1, $2) returning *`, [1, 'a'])).rows, 1),
      prepared: async () => {
        for (let n = 0; n < 5; n++) {
          const { rows } = await pool.query({
            name: `get-${table}`,
            text: `select * from ${table} where id = $1`,
            values: [1],
          });
          expectRows(rows, 1);
        }
      },
      // A named statement that the client prepared before another client took its server session.
      named: async () => {
        const statement = { name: `named-${table}`, text: 'select 1 as one' };
        const [one, other] = await Promise.all([pool.connect(), pool.connect()]);
        try {
          await one.query(statement);
          await other.query('begin');
          await one.query(statement);
        } finally {
          for (const client of [one, other]) client.release(true);
        }
      },
      listen: async () => {
        const client = await pool.connect();
        try {
          const { promise, resolve } = Promise.withResolvers();
          client.on('notification', resolve);
          await client.query('listen clients');
          await pool.query("select pg_notify('clients', 'hello')");
          await within(promise);
        } finally {
          client.release(true);
        }
      },
    };
  },

  async postgres(url, table) {
    const { default: postgres } = await import('postgres');
    const sql = postgres(url, { max: 2, onnotice: () => {} });
    return {
      close: () => sql.end({ timeout: 1 }),
      migrate: () => sql.unsafe(`create table ${table} (id int primary key, name text)`),
      query: async () => expectRows(await sql`insert into ${sql(table)} values (1, 'a') returning *`, 1),
      prepared: async () => {
        for (let n = 0; n < 5; n++) expectRows(await sql`select * from ${sql(table)} where id = ${1}`, 1);
      },
      listen: async () => {
        const { promise, resolve } = Promise.withResolvers();
        const { unlisten } = await within(sql.listen('clients', resolve));
        await sql.notify('clients', 'hello');
        await within(promise);
        await unlisten();
      },
    };
  },

  async knex(url, table) {
    const { default: knex } = await import('knex');
    const db = knex({ client: 'pg', connection: url, pool: { min: 0, max: 2 } });
    const source = {
      getMigrations: async () => ['first'],
      getMigrationName: (name) => name,
      getMigration: () => ({
        up: (k) => k.schema.createTable(table, (t) => t.integer('id').primary()),
        down: (k) => k.schema.dropTable(table),
      }),
    };
    return {
      close: () => db.destroy(),
      migrate: () => db.migrate.latest({ migrationSource: source, tableName: `${table}_migrations` }),
      query: async () => expectRows(await db(table).insert({ id: 1 }).returning('*'), 1),
      prepared: async () => expectRows(await db.transaction((t) => t(table).where('id', 1)), 1),
    };
  },

  async sequelize(url, table) {
    const { Sequelize, DataTypes } = await import('sequelize');
    const db = new Sequelize(url, {
      logging: false,
      pool: { max: 2 },
      dialectOptions: { ssl: { rejectUnauthorized: true } },
    });
    const Item = db.define(table, {
      id: { type: DataTypes.INTEGER, primaryKey: true },
      name: DataTypes.STRING,
    });
    return {
      close: () => db.close(),
      migrate: () => db.sync(),
      query: () => Item.create({ id: 1, name: 'a' }),
      prepared: async () =>
        expectRows(await db.query('select $1::int as n', { bind: [1], type: 'SELECT' }), 1),
    };
  },

  async typeorm(url, table) {
    await import('reflect-metadata');
    const { DataSource, EntitySchema } = await import('typeorm');
    const Item = new EntitySchema({
      name: table,
      columns: { id: { type: Number, primary: true }, name: { type: String } },
    });
    const db = new DataSource({
      type: 'postgres',
      url,
      entities: [Item],
      synchronize: false,
      extra: { max: 2 },
    });
    await db.initialize();
    return {
      close: () => db.destroy(),
      migrate: () => db.synchronize(),
      query: () => db.getRepository(Item).insert({ id: 1, name: 'a' }),
      prepared: async () => expectRows(await db.transaction((m) => m.getRepository(Item).find()), 1),
    };
  },

  async drizzle(url, table) {
    const { drizzle } = await import('drizzle-orm/node-postgres');
    const { migrate } = await import('drizzle-orm/node-postgres/migrator');
    const { pgTable, integer, text } = await import('drizzle-orm/pg-core');
    const { eq, sql } = await import('drizzle-orm');
    const { default: pg } = await import('pg');
    const pool = new pg.Pool({ connectionString: url, max: 2 });
    const db = drizzle(pool);
    const items = pgTable(table, { id: integer().primaryKey(), name: text() });
    const folder = mkdtempSync(join(tmpdir(), 'drizzle-'));
    return {
      close: () => {
        rmSync(folder, { recursive: true });
        return pool.end();
      },
      migrate: async () => {
        const { mkdirSync } = await import('node:fs');
        mkdirSync(join(folder, 'meta'));
        const entry = { idx: 0, version: '7', when: 1, tag: '0000_first', breakpoints: true };
        writeFileSync(
          join(folder, 'meta/_journal.json'),
          JSON.stringify({ version: '7', dialect: 'postgresql', entries: [entry] }),
        );
        writeFileSync(
          join(folder, '0000_first.sql'),
          `create table ${table} (id int primary key, name text)`,
        );
        await migrate(db, { migrationsFolder: folder, migrationsTable: `${table}_migrations` });
      },
      query: async () => expectRows(await db.insert(items).values({ id: 1, name: 'a' }).returning(), 1),
      prepared: async () => {
        const get = db
          .select()
          .from(items)
          .where(eq(items.id, sql.placeholder('id')))
          .prepare(`drizzle_${table}`);
        for (let n = 0; n < 5; n++) expectRows(await get.execute({ id: 1 }), 1);
      },
    };
  },

  async kysely(url, table) {
    const { Kysely, PostgresDialect } = await import('kysely');
    const { Migrator } = await import('kysely/migration');
    const { default: pg } = await import('pg');
    const db = new Kysely({
      dialect: new PostgresDialect({ pool: new pg.Pool({ connectionString: url, max: 2 }) }),
    });
    const provider = {
      getMigrations: async () => ({
        first: { up: (k) => k.schema.createTable(table).addColumn('id', 'integer').execute() },
      }),
    };
    return {
      close: () => db.destroy(),
      migrate: async () => {
        const names = { migrationTableName: `${table}_m`, migrationLockTableName: `${table}_l` };
        const { error } = await new Migrator({ db, provider, ...names }).migrateToLatest();
        if (error) throw error;
      },
      query: async () => expectRows(await db.insertInto(table).values({ id: 1 }).returningAll().execute(), 1),
      prepared: async () =>
        expectRows(await db.transaction().execute((t) => t.selectFrom(table).selectAll().execute()), 1),
    };
  },

  /** Over WebSocket. Node's own WebSocket has the authorities of NODE_EXTRA_CA_CERTS. */
  async neon(url, table) {
    const { Pool } = await neonPackage();
    const pool = new Pool({ connectionString: url, max: 2 });
    return {
      close: () => pool.end(),
      migrate: () => pool.query(`create table ${table} (id int primary key, name text)`),
      query: async () =>
        expectRows((await pool.query(`insert into ${table} values ($1, $2) returning *`, [1, 'a'])).rows, 1),
      prepared: async () => {
        for (let n = 0; n < 5; n++) {
          const statement = {
            name: `get-${table}`,
            text: `select * from ${table} where id = $1`,
            values: [1],
          };
          expectRows((await pool.query(statement)).rows, 1);
        }
      },
      listen: async () => {
        const client = await pool.connect();
        try {
          const { promise, resolve } = Promise.withResolvers();
          client.on('notification', resolve);
          await client.query('listen clients');
          await pool.query("select pg_notify('clients', 'hello')");
          await within(promise);
        } finally {
          client.release(true);
        }
      },
    };
  },

  async 'drizzle neon-serverless'(url, table) {
    const { Pool } = await neonPackage();
    const { drizzle } = await import('drizzle-orm/neon-serverless');
    const pool = new Pool({ connectionString: url, max: 2 });
    const { items, eq, sql } = await drizzleTable(table);
    const db = drizzle({ client: pool });
    return {
      close: () => pool.end(),
      migrate: () => db.execute(sql.raw(`create table ${table} (id int primary key, name text)`)),
      query: async () => expectRows(await db.insert(items).values({ id: 1, name: 'a' }).returning(), 1),
      prepared: async () => {
        const rolledBack = db.transaction(async (t) => {
          await t.insert(items).values({ id: 2, name: 'b' });
          t.rollback();
        });
        await rolledBack.catch(() => {});
        expectRows(await db.transaction((t) => t.select().from(items).where(eq(items.id, 1))), 1);
        expectRows(await db.select().from(items), 1);
      },
    };
  },

  /** Over HTTP, for both URLs through the pooler. */
  async 'drizzle neon-http'(url, table) {
    const { neon } = await neonPackage();
    const { drizzle } = await import('drizzle-orm/neon-http');
    const { items, eq, sql } = await drizzleTable(table);
    const db = drizzle({ client: neon(url) });
    return {
      close: () => {},
      migrate: () => db.execute(sql.raw(`create table ${table} (id int primary key, name text)`)),
      query: async () => expectRows(await db.insert(items).values({ id: 1, name: 'a' }).returning(), 1),
      prepared: async () => {
        const [, found] = await db.batch([
          db.insert(items).values({ id: 2, name: 'b' }),
          db.select().from(items).where(eq(items.id, 2)),
        ]);
        expectRows(found, 1);
      },
    };
  },

  async 'kysely neon'(url, table) {
    const { Pool } = await neonPackage();
    const { Kysely, PostgresDialect } = await import('kysely');
    const db = new Kysely({
      dialect: new PostgresDialect({ pool: new Pool({ connectionString: url, max: 2 }) }),
    });
    return {
      close: () => db.destroy(),
      migrate: () => db.schema.createTable(table).addColumn('id', 'integer').execute(),
      query: async () => expectRows(await db.insertInto(table).values({ id: 1 }).returningAll().execute(), 1),
      prepared: async () =>
        expectRows(await db.transaction().execute((t) => t.selectFrom(table).selectAll().execute()), 1),
    };
  },

  async 'node-pg-migrate'(url, table) {
    const { runner } = await import('node-pg-migrate');
    const dir = mkdtempSync(join(tmpdir(), 'node-pg-migrate-'));
    writeFileSync(
      join(dir, '1000000000000_first.mjs'),
      `export const up = (pgm) => pgm.createTable('${table}', { id: 'id' });`,
    );
    return {
      close: () => rmSync(dir, { recursive: true }),
      migrate: () =>
        runner({
          databaseUrl: url,
          dir,
          direction: 'up',
          migrationsTable: `${table}_migrations`,
          log: () => {},
        }),
    };
  },

  async 'pg-boss'(url, table) {
    const { PgBoss } = await import('pg-boss');
    const boss = new PgBoss({ connectionString: url, schema: table, max: 2 });
    boss.on('error', () => {});
    return {
      close: () => boss.stop({ graceful: false }),
      migrate: () => boss.start(),
      query: async () => {
        await boss.createQueue('work');
        await boss.send('work', { n: 1 });
        expectRows(await boss.fetch('work'), 1);
      },
    };
  },

  async 'graphile-worker'(url, table) {
    const { run, Logger, quickAddJob } = await import('graphile-worker');
    const logger = new Logger(() => () => {});
    const options = {
      connectionString: url,
      schema: table,
      logger,
      noHandleSignals: true,
      pollInterval: 500,
    };
    let runner;
    return {
      close: () => runner?.stop(),
      migrate: () => quickAddJob(options, 'work', { n: 0 }),
      query: async () => {
        const { promise, resolve } = Promise.withResolvers();
        runner = await run({ ...options, taskList: { work: async () => resolve() } });
        await within(promise);
      },
    };
  },
};

const STEPS = ['migrate', 'query', 'prepared', 'named', 'listen'];
const PORTS = { pooled: process.env.DATABASE_URL, direct: process.env.DIRECT_URL };

/** A part of the names of those that are tried. */
const { CLIENTS_NAMED = '' } = process.env;

for (const [client, open] of Object.entries(CLIENTS).filter(([name]) => name.includes(CLIENTS_NAMED))) {
  for (const [port, url] of Object.entries(PORTS)) {
    const table = `t_${client.replaceAll(/[- ]/g, '_')}_${port}`;
    const result = { client, port };
    try {
      const { close, ...steps } = await open(url, table);
      for (const step of STEPS.filter((name) => steps[name])) {
        try {
          await steps[step]();
          result[step] = 'ok';
        } catch (error) {
          result[step] = error.message || String(error);
        }
      }
      await close();
    } catch (error) {
      result.connect = error.message || String(error);
    }
    console.log(JSON.stringify(result));
  }
}
process.exit(0);
