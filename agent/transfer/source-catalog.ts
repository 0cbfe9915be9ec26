import { inTransaction, type Session } from '../postgres/connect.ts';
import { noMember, OWN_SCHEMA } from '../postgres/own-objects.ts';

interface Named {
  schema: string;
  name: string;
}

/** A table with rows of its own: a partition is one, a partitioned table is not. */
export interface TableRow extends Named {
  oid: string;
  root_oid: string;
  root_schema: string;
  root_name: string;
  /** `r`, or `f` for a foreign table. */
  kind: string;
  is_unlogged: boolean;
  /** Updates and deletions name their row in the WAL. */
  has_key: boolean;
  /** True if a trigger fires for replicated changes too. */
  fires_always: boolean;
  readable: boolean;
  owned: boolean;
  /** Row-level security applies to the login. */
  hides_rows: boolean;
  rows: number;
  bytes: number;
}

interface Publication {
  insert: boolean;
  update: boolean;
  delete: boolean;
  truncate: boolean;
}

export interface SourceExtension {
  name: string;
  version: string;
  schema: string;
}

interface ServerFacts {
  version: string;
  major: number;
  database: string;
  user: string;
  wal_level: string;
  free_slots: number;
  free_senders: number;
  wal_keep_bytes: number | null;
  is_standby: boolean;
  encoding: string;
  may_replicate: boolean;
  may_create: boolean;
  large_objects: number;
}

/** Facts that decide whether a database can be followed. */
export interface SourceCatalog extends ServerFacts {
  extensions: SourceExtension[];
  tables: TableRow[];
  hidden_sequences: (Named & { oid: string })[];
  /** Partitioned tables that the login cannot read, which a dump locks too, with the ids of their partitions. */
  hidden_parents: (Named & { oid: string; partitions: string[] })[];
  /** Logins whose sessions in the database the login cannot see; superusers are left out, and some of many are listed. */
  hidden_logins: string[];
  /** Null: the source has none of this name, or none was named. */
  publication: Publication | null;
  /** OIDs of the tables of the publication. */
  published: ReadonlySet<string>;
  /** Tables of which the publication has some rows or columns. */
  partial: number;
}

/** Returns whether the named publication has the table. */
export const isPublished = ({ published }: SourceCatalog, { oid, root_oid }: TableRow): boolean =>
  published.has(oid) || published.has(root_oid);

/** Beyond it a catalog is cut off, as no project may have so many files. */
const OBJECTS_MAX = 20_000;
const COUNTED_MAX = 1_000_000;

const SERVER = `
  SELECT current_setting('server_version') AS version,
    current_setting('server_version_num')::int / 10000 AS major,
    current_database() AS database, current_user AS "user",
    current_setting('wal_level') AS wal_level,
    current_setting('max_replication_slots')::int - (SELECT count(*)::int FROM pg_replication_slots) AS free_slots,
    current_setting('max_wal_senders')::int - (SELECT count(*)::int FROM pg_stat_replication) AS free_senders,
    (SELECT nullif(setting, '-1')::float8 * 1048576 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS wal_keep_bytes,
    pg_is_in_recovery() AS is_standby,
    getdatabaseencoding() AS encoding,
    (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
      -- Amazon's servers give the right by membership.
      OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(current_user, oid, 'MEMBER'))
      AS may_replicate,
    has_database_privilege(current_database(), 'CREATE') AS may_create,
    (SELECT count(*)::int FROM (SELECT FROM pg_largeobject_metadata LIMIT ${COUNTED_MAX}) AS counted) AS large_objects`;

const EXTENSIONS = `SELECT extname AS name, extversion AS version, n.nspname AS schema
  FROM pg_extension JOIN pg_namespace AS n ON n.oid = extnamespace WHERE extname <> 'plpgsql' ORDER BY 1 LIMIT ${OBJECTS_MAX}`;

const NO_MEMBER = noMember('pg_class', 'c.oid');

const TABLES = `
  SELECT c.oid::text AS oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind,
    root.oid::text AS root_oid, root.relname AS root_name, root_schema.nspname AS root_schema,
    c.relpersistence = 'u' AS is_unlogged,
    c.relreplident = 'f' OR EXISTS (
      SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisvalid AND
        CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN i.indisreplident ELSE false END
    ) AS has_key,
    EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND t.tgenabled IN ('A', 'R')) AS fires_always,
    has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS readable,
    pg_has_role(c.relowner, 'USAGE') AS owned,
    row_security_active(c.oid) AS hides_rows,
    greatest(c.reltuples, 0)::float8 AS rows,
    CASE c.relkind WHEN 'f' THEN 0 ELSE pg_total_relation_size(c.oid) END::float8 AS bytes
  FROM pg_class AS c
  JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_class AS root ON root.oid = CASE WHEN c.relispartition THEN pg_partition_root(c.oid) ELSE c.oid END
  JOIN pg_namespace AS root_schema ON root_schema.oid = root.relnamespace
  WHERE c.relkind IN ('r', 'f') AND c.relpersistence <> 't' AND ${OWN_SCHEMA} AND ${NO_MEMBER}
  ORDER BY 2, 3 LIMIT ${OBJECTS_MAX}`;

const HIDDEN_SEQUENCES = `
  SELECT n.nspname AS schema, c.relname AS name, c.oid::text AS oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND ${OWN_SCHEMA} AND ${NO_MEMBER}
    -- PostgreSQL chooses the order of conditions, and the function refuses other relations.
    AND CASE c.relkind WHEN 'S' THEN NOT (has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT')) END
  ORDER BY 1, 2 LIMIT ${OBJECTS_MAX}`;

const HIDDEN_PARENTS = `
  SELECT n.nspname AS schema, c.relname AS name, c.oid::text AS oid, ARRAY(SELECT relid::oid::text FROM pg_partition_tree(c.oid)) AS partitions
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.relkind = 'p' AND ${OWN_SCHEMA} AND ${NO_MEMBER} AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))
  ORDER BY 1, 2 LIMIT ${OBJECTS_MAX}`;

const HIDDEN_LOGINS = `
  SELECT rolname AS name FROM pg_roles
  WHERE rolcanlogin AND NOT rolsuper AND has_database_privilege(oid, current_database(), 'CONNECT')
    AND NOT pg_has_role(oid, 'USAGE') AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
  ORDER BY 1 LIMIT 20`;

const PUBLICATION = `
  SELECT pubinsert AS insert, pubupdate AS update, pubdelete AS delete, pubtruncate AS truncate
  FROM pg_publication WHERE pubname = $1`;
const PUBLISHED = `
  SELECT c.oid::text AS oid FROM pg_publication_tables AS t
  JOIN pg_namespace AS n ON n.nspname = t.schemaname
  JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = t.tablename
  WHERE t.pubname = $1 LIMIT ${OBJECTS_MAX}`;
/** Row filters and lists of columns came with version 15. */
const PARTIAL = `
  SELECT count(*)::int AS partial FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid
  WHERE p.pubname = $1 AND (r.prqual IS NOT NULL OR r.prattrs IS NOT NULL)`;

/** The oldest server whose catalog has what these queries name. */
const OLDEST = 13;
/** Publications of rows and columns. */
const WITH_PARTS = 15;

/**
 * Reads a source in one snapshot.
 * @param publication the name of one that exists there; null: none
 */
export const readCatalog = (session: Session, publication: string | null): Promise<SourceCatalog> =>
  inTransaction(session, async () => {
    const rowsOf = async <Row extends object>(sql: string, values: unknown[] = []) =>
      (await session.query<Row>(sql, values)).rows;
    const [server] = await rowsOf<ServerFacts>(SERVER);
    if (!server) throw new Error('the source did not answer');
    const named = publication === null ? [] : [publication];
    const isOld = server.major < OLDEST;
    const [found] = named.length === 0 ? [] : await rowsOf<Publication>(PUBLICATION, named);
    const published = found ? await rowsOf<{ oid: string }>(PUBLISHED, named) : [];
    const [{ partial } = { partial: 0 }] =
      found && server.major >= WITH_PARTS ? await rowsOf<{ partial: number }>(PARTIAL, named) : [];
    return {
      ...server,
      extensions: await rowsOf<SourceExtension>(EXTENSIONS),
      tables: isOld ? [] : await rowsOf<TableRow>(TABLES),
      hidden_sequences: await rowsOf<SourceCatalog['hidden_sequences'][number]>(HIDDEN_SEQUENCES),
      hidden_parents: isOld ? [] : await rowsOf<SourceCatalog['hidden_parents'][number]>(HIDDEN_PARENTS),
      hidden_logins: (await rowsOf<{ name: string }>(HIDDEN_LOGINS)).map(({ name }) => name),
      publication: found ?? null,
      published: new Set(published.map(({ oid }) => oid)),
      partial,
    };
  });
