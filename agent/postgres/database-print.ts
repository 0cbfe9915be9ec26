import type { Queryable } from './connect.ts';
import { FIRST_OWN } from './own-objects.ts';

/**
 * Texts that differ when a database has changed, and that take no reading of its rows. A move compares them once its
 * former host has no clients, because a login that can only read may call a function `SECURITY DEFINER` that writes. A dump
 * of a schema is made again when the text of the schema is another one, so it has every catalog that pg_dump reads.
 */

const NO_TEMPORARY = "NOT LIKE 'pg\\_%temp\\_%'";

/** Rows of catalogs by their id and the transaction that has written them. `ANALYZE` and `VACUUM` write none again. */
const rowsOf = (catalog: string, condition = `oid >= ${FIRST_OWN}`, id = 'oid') =>
  `SELECT '${catalog} ' || ${id} || ' ' || xmin AS entry FROM pg_catalog.${catalog} WHERE ${condition}`;

/** Without the tables of long values, which are others after the refresh of a view. */
const OWN_CLASS = `SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  WHERE c.oid >= ${FIRST_OWN} AND n.nspname ${NO_TEMPORARY} AND n.nspname <> 'pg_toast'`;
const notTemporary = (column: string) =>
  `${column} NOT IN (SELECT oid FROM pg_catalog.pg_namespace WHERE NOT nspname ${NO_TEMPORARY})`;
const ofClass = (column: string) => `${column} IN (${OWN_CLASS})`;
const own = (more: string) => `oid >= ${FIRST_OWN} AND ${more}`;

const SCHEMA = [
  rowsOf('pg_attribute', `attnum > 0 AND ${ofClass('attrelid')}`, "attrelid || '.' || attnum"),
  rowsOf('pg_attrdef', own(ofClass('adrelid'))),
  rowsOf('pg_constraint', own(notTemporary('connamespace'))),
  rowsOf('pg_index', ofClass('indrelid'), 'indexrelid'),
  rowsOf('pg_inherits', ofClass('inhrelid'), "inhrelid || '.' || inhparent"),
  rowsOf('pg_partitioned_table', ofClass('partrelid'), 'partrelid'),
  rowsOf('pg_sequence', ofClass('seqrelid'), 'seqrelid'),
  rowsOf('pg_trigger', own(ofClass('tgrelid'))),
  rowsOf('pg_rewrite', own(ofClass('ev_class'))),
  rowsOf('pg_policy', own(ofClass('polrelid'))),
  rowsOf('pg_statistic_ext', own(notTemporary('stxnamespace'))),
  rowsOf('pg_namespace', `(oid >= ${FIRST_OWN} OR nspname = 'public') AND nspname ${NO_TEMPORARY}`),
  rowsOf('pg_type', own(notTemporary('typnamespace'))),
  rowsOf('pg_enum'),
  rowsOf('pg_range', `rngtypid >= ${FIRST_OWN}`, 'rngtypid'),
  rowsOf('pg_proc', own(notTemporary('pronamespace'))),
  rowsOf('pg_aggregate', `aggfnoid::oid >= ${FIRST_OWN}`, 'aggfnoid::oid'),
  ...['pg_cast', 'pg_collation', 'pg_conversion', 'pg_extension', 'pg_default_acl'].map((name) =>
    rowsOf(name),
  ),
  ...['pg_operator', 'pg_opclass', 'pg_opfamily', 'pg_amop', 'pg_amproc', 'pg_am'].map((name) =>
    rowsOf(name),
  ),
  ...['pg_ts_config', 'pg_ts_dict', 'pg_ts_parser', 'pg_ts_template'].map((name) => rowsOf(name)),
  rowsOf('pg_ts_config_map', `mapcfg >= ${FIRST_OWN}`, "mapcfg || '.' || maptokentype || '.' || mapseqno"),
  ...['pg_language', 'pg_transform', 'pg_event_trigger'].map((name) => rowsOf(name)),
  ...['pg_foreign_data_wrapper', 'pg_foreign_server'].map((name) => rowsOf(name)),
  rowsOf('pg_foreign_table', ofClass('ftrelid'), 'ftrelid'),
  "SELECT concat_ws(' ', 'pg_user_mappings', umid, srvid, usename, umoptions) FROM pg_catalog.pg_user_mappings",
  ...['pg_publication', 'pg_publication_rel', 'pg_publication_namespace'].map((name) => rowsOf(name)),
  ...['pg_init_privs', 'pg_seclabel'].map((name) =>
    rowsOf(name, `objoid >= ${FIRST_OWN}`, "classoid || '.' || objoid || '.' || objsubid"),
  ),
  // Clients choose these ids as they like: the system reserves none.
  rowsOf('pg_largeobject_metadata', 'true'),
  // Each database has the schema `public` from the beginning.
  rowsOf(
    'pg_description',
    `objoid >= ${FIRST_OWN} OR (classoid = 'pg_catalog.pg_namespace'::regclass AND objoid = 'public'::regnamespace)`,
    "classoid || '.' || objoid || '.' || objsubid",
  ),
  // Members of extensions, and the sequences of columns. Other catalogs say everything else.
  `SELECT concat_ws(' ', 'pg_depend', classid, objid, refclassid, refobjid, refobjsubid, deptype) FROM pg_catalog.pg_depend
   WHERE deptype IN ('e', 'x') AND objid >= ${FIRST_OWN}
     OR deptype IN ('a', 'i') AND refobjsubid > 0 AND classid = 'pg_catalog.pg_class'::regclass AND ${ofClass('objid')}`,
  // Options of long values.
  `SELECT concat_ws(' ', 'toast', c.oid, t.reloptions) FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_class AS t ON t.oid = c.reltoastrelid
   WHERE ${ofClass('c.oid')}`,
];

/** Without what a `TRUNCATE` or the refresh of a view writes: they change no schema. */
const CLASSES = `SELECT concat_ws(' ', 'pg_class', oid, relname, relnamespace, relowner, relkind, relpersistence, relreplident,
    relrowsecurity, relforcerowsecurity, relacl, reloptions, relispartition, relpartbound, relam, reloftype) AS entry
  FROM pg_catalog.pg_class WHERE ${ofClass('oid')}`;

const ENTRIES = {
  schema: [CLASSES, ...SCHEMA],
  // A file that was replaced is among the rows of `pg_class`.
  content: [rowsOf('pg_class', ofClass('oid')), ...SCHEMA],
};

/**
 * Rows that were written, as sessions report it when they end. The counts are lost with a crash of the server, whose
 * time is therefore compared too.
 */
const WRITTEN = `SELECT concat_ws(' ', (SELECT stats_reset FROM pg_catalog.pg_stat_checkpointer),
    (SELECT stats_reset FROM pg_catalog.pg_stat_database WHERE datname = current_database()),
    (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_catalog.pg_stat_user_tables)) AS entry
  UNION ALL SELECT concat_ws(' ', 'value', seqrelid, last_value, is_called)
  FROM pg_catalog.pg_sequence CROSS JOIN LATERAL pg_catalog.pg_get_sequence_data(seqrelid::regclass) AS of_sequence WHERE ${ofClass('seqrelid')}`;

/**
 * @param session sees all sequences of the database, which have no writers if this is about content
 * @param of the schema alone, or rows and sequences too
 */
export async function databasePrint(session: Queryable, of: keyof typeof ENTRIES): Promise<string> {
  const entries = [...ENTRIES[of], ...(of === 'content' ? [WRITTEN] : [])];
  const { rows } = await session.query<{ print: string }>(
    `SELECT pg_catalog.md5(coalesce(pg_catalog.string_agg(entry, E'\\n' ORDER BY entry COLLATE "C"), '')) AS print
     FROM (${entries.join(' UNION ALL ')}) AS entries`,
  );
  return rows[0]?.print ?? '';
}
