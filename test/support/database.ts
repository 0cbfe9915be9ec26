import { createHash } from 'node:crypto';
import pg from 'pg';

/** Connects with TLS; the local stack's certificate is self-signed. */
export async function connect(url: string, options: pg.ClientConfig = {}): Promise<pg.Client> {
  const { hostname, port, username, password, pathname } = new URL(url);
  const client = new pg.Client({
    host: hostname,
    port: Number(port),
    user: username,
    password: decodeURIComponent(password),
    database: pathname.slice(1),
    ssl: { rejectUnauthorized: false },
    connectionTimeoutMillis: 60_000,
    ...options,
  });
  // A session ended by the server is reported here too; a pending query rejects with it.
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** Runs one query on a separate connection. */
export async function query<R extends pg.QueryResultRow = pg.QueryResultRow>(
  url: string,
  sql: string,
  values: unknown[] = [],
): Promise<R[]> {
  const client = await connect(url);
  try {
    return (await client.query<R>(sql, values)).rows;
  } finally {
    await client.end();
  }
}

/**
 * Describes a database except for its rows. Object ids are omitted, because they may differ between clones.
 */
const CATALOG = [
  `select n.nspname, c.relname, c.relkind, pg_get_userbyid(c.relowner), c.relacl::text from pg_class c
     join pg_namespace n on n.oid = relnamespace where n.nspname !~ '^pg_(toast|temp)'`,
  `select attrelid::regclass::text, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated
     from pg_attribute where attnum > 0 and not attisdropped`,
  'select conrelid::regclass::text, conname, pg_get_constraintdef(oid) from pg_constraint',
  `select proname, pg_get_function_identity_arguments(oid), prosrc from pg_proc`,
  'select tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal',
  'select schemaname, viewname, definition from pg_views',
  'select schemaname, sequencename, last_value, increment_by from pg_sequences',
  'select extname, extversion from pg_extension',
  "select nspname, pg_get_userbyid(nspowner), nspacl::text from pg_namespace where nspname !~ '^pg_(toast|temp)'",
  'select enumtypid::regtype::text, enumlabel, enumsortorder from pg_enum',
  'select defaclrole::regrole::text, defaclobjtype, defaclacl::text from pg_default_acl',
];

export interface Fingerprint {
  hash: string;
  tables: number;
  rows: number;
}

/** A hash over catalog and rows: equal for two databases with the same content. */
export async function fingerprint(url: string): Promise<Fingerprint> {
  const client = await connect(url);
  try {
    const hash = createHash('sha256');
    for (const sql of CATALOG) {
      const { rows } = await client.query({ text: `select t::text as line from (${sql}) t order by 1` });
      for (const { line } of rows) hash.update(`${line}\n`);
    }
    const tables = await client.query<{ name: string }>(
      `select format('%I.%I', schemaname, tablename) as name from pg_tables
       where schemaname not in ('pg_catalog', 'information_schema') order by 1`,
    );
    let rows = 0;
    for (const { name } of tables.rows) {
      const content = await client.query<{ count: string; hash: string | null }>(
        `select count(*), md5(string_agg(md5(t::text), '' order by md5(t::text))) as hash from ${name} t`,
      );
      const [found] = content.rows;
      rows += Number(found?.count);
      hash.update(`${name} ${found?.count} ${found?.hash}\n`);
    }
    return { hash: hash.digest('hex'), tables: tables.rows.length, rows };
  } finally {
    await client.end();
  }
}
