import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { identifier, type Session } from '../postgres/connect.ts';
import { OWN_SCHEMA } from '../postgres/own-objects.ts';
import { atSource } from './copy-rows.ts';
import { finding, short } from './source-address.ts';

/** Objects of a source that are left alone: neither locked nor read, with everything that depends on them. */

/** Names of a request: tables with their schema unless it is `public`. */
export interface LeftAloneRequest {
  /** Others than these. Left out: none. */
  schemas?: string[] | undefined;
  exclude_schemas?: string[] | undefined;
  exclude_tables?: string[] | undefined;
  /** Extensions that this host does not have and that nothing needs; no request names them. Left out: none. */
  extensions?: string[] | undefined;
}

export interface LeftAlone {
  schemas: string[];
  /** With the partitions of each. */
  tables: [schema: string, name: string][];
  extensions: string[];
  /** Objects that are left alone and their dependents, as `catalog oid`. */
  objects: ReadonlySet<string>;
}

const NOTHING_LEFT_ALONE: LeftAlone = { schemas: [], tables: [], extensions: [], objects: new Set() };

const SCHEMAS = `SELECT nspname AS name FROM pg_namespace AS n WHERE ${OWN_SCHEMA}`;

const TABLES = `
  SELECT n.nspname AS schema, c.relname AS name, c.oid::text AS oid,
    root.relname AS root_name, root_schema.nspname AS root_schema
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
  JOIN pg_class AS root ON root.oid = CASE WHEN c.relispartition THEN pg_partition_root(c.oid) ELSE c.oid END
  JOIN pg_namespace AS root_schema ON root_schema.oid = root.relnamespace
  WHERE c.relkind IN ('r', 'p', 'f', 'v', 'm') AND c.relpersistence <> 't' AND ${OWN_SCHEMA}`;

/** An object depends on its schema. A rule is a part of its view, and a default of its table. */
const OBJECTS = `
  WITH RECURSIVE left_alone AS (
    SELECT 'pg_namespace'::regclass::oid AS classid, n.oid AS objid FROM pg_namespace AS n WHERE n.nspname = ANY ($1::text[])
    UNION SELECT 'pg_class'::regclass, c.oid FROM unnest($2::oid[]) AS c (oid)
    UNION SELECT 'pg_extension'::regclass, e.oid FROM pg_extension AS e WHERE e.extname = ANY ($3::text[])
    UNION SELECT d.classid, d.objid FROM pg_depend AS d JOIN pg_extension AS e ON e.oid = d.refobjid
      WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = ANY ($3::text[])
    UNION
    SELECT DISTINCT coalesce(whole.classid, d.classid), coalesce(whole.objid, d.objid)
    FROM left_alone JOIN pg_depend AS d ON d.refclassid = left_alone.classid AND d.refobjid = left_alone.objid AND d.deptype <> 'e'
    LEFT JOIN LATERAL (
      SELECT 'pg_class'::regclass::oid AS classid, ev_class AS objid FROM pg_rewrite WHERE d.classid = 'pg_rewrite'::regclass AND pg_rewrite.oid = d.objid
      UNION ALL SELECT 'pg_class'::regclass, adrelid FROM pg_attrdef WHERE d.classid = 'pg_attrdef'::regclass AND pg_attrdef.oid = d.objid
    ) AS whole ON true
  )
  SELECT classid || ' ' || objid AS key FROM left_alone`;

/** A name as a person would write it. */
export const sqlName = (name: string) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : identifier(name));

/** How a request may name a table. */
export const spellings = (schema: string, name: string): string[] => [
  `${schema}.${name}`,
  `${sqlName(schema)}.${sqlName(name)}`,
  ...(schema === 'public' ? [name, sqlName(name)] : []),
];

interface FoundTable {
  schema: string;
  name: string;
  oid: string;
  root_schema: string;
  root_name: string;
}

/** @returns also what the source does not have. Errors of the source are marked */
export async function readLeftAlone(
  session: Session,
  { schemas, exclude_schemas: without = [], exclude_tables: tables = [], extensions = [] }: LeftAloneRequest,
): Promise<{ leftAlone: LeftAlone; unknown: SourceFinding[] }> {
  if (!schemas && without.length + tables.length + extensions.length === 0)
    return { leftAlone: NOTHING_LEFT_ALONE, unknown: [] };
  const own = (await atSource(session.query<{ name: string }>(SCHEMAS))).rows.map(({ name }) => name);
  const unknown: SourceFinding[] = [];
  const missing = (what: string, name: string, path: string) =>
    unknown.push(finding('tables', `The source has no ${what} ${short(name)}.`, { path }));
  for (const [field, names] of Object.entries({ schemas: schemas ?? [], exclude_schemas: without }))
    for (const [at, name] of names.entries())
      if (!own.includes(name)) missing('schema', name, `${field}.${at}`);
  const excluded = own.filter((name) => without.includes(name) || (schemas && !schemas.includes(name)));
  const known = new Map<string, Map<string, FoundTable>>();
  for (const table of (await atSource(session.query<FoundTable>(TABLES))).rows)
    for (const spelling of [
      ...spellings(table.schema, table.name),
      ...spellings(table.root_schema, table.root_name),
    ])
      known.set(spelling, (known.get(spelling) ?? new Map()).set(table.oid, table));
  const found = new Map<string, FoundTable>();
  for (const [at, name] of tables.entries()) {
    const named = known.get(name);
    if (!named) missing('table', name, `exclude_tables.${at}`);
    for (const [oid, table] of named ?? []) found.set(oid, table);
  }
  const { rows } = await atSource(
    session.query<{ key: string }>(OBJECTS, [excluded, [...found.keys()], extensions]),
  );
  return {
    leftAlone: {
      schemas: excluded,
      tables: [...found.values()].map(({ schema, name }) => [schema, name]),
      extensions,
      objects: new Set(rows.map(({ key }) => key)),
    },
    unknown,
  };
}

/** Returns whether the relation is left alone, or depends on what is. */
export const isLeftAlone = ({ objects }: LeftAlone, { oid }: { oid: string }): boolean =>
  objects.has(`${PG_CLASS} ${oid}`);

/** The object id of `pg_class`, which is the same in every version. */
const PG_CLASS = 1259;
