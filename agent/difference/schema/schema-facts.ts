import type { Queryable } from '../../postgres/connect.ts';

/**
 * What the catalogs say of relations and types whose entries of a dump differ: the text of an entry says that two tables
 * differ, and these facts say how one is altered into the other.
 */

export interface Column {
  name: string;
  number: number;
  /** With its collation, if that is not the one of the type. */
  type: string;
  default: string | null;
  identity: '' | 'a' | 'd';
  generated: '' | 's' | 'v';
  storage: string;
  compression: string | null;
  statistics: number | null;
  options: string[] | null;
  isInherited: boolean;
  isMandatory: boolean;
}

/** A check or a NOT NULL. */
export interface Bound {
  name: string;
  definition: string;
  isValid: boolean;
  isInherited: boolean;
  /** The column of a NOT NULL. */
  column: string | null;
}

export interface RelationFacts {
  oid: number;
  kind: string;
  persistence: string;
  options: string[] | null;
  toast: string[] | null;
  method: string | null;
  ofType: string | null;
  identity: string;
  isForced: boolean;
  clustered: string | null;
  parents: string[] | null;
  columns: Column[] | null;
  bounds: Bound[] | null;
}

export interface TypeFacts {
  oid: number;
  kind: string;
  labels: string[] | null;
  attributes: Column[] | null;
  default: string | null;
  isMandatory: boolean;
  bounds: Bound[] | null;
}

export interface SequenceFacts {
  oid: number;
  min: string;
  max: string;
  isAscending: boolean;
}

/** An object that depends on single columns of a table. */
export interface ColumnUser {
  table: number;
  column: number;
  catalog: number;
  oid: number;
}

export interface SchemaFacts {
  relations: Map<number, RelationFacts>;
  types: Map<number, TypeFacts>;
  sequences: Map<number, SequenceFacts>;
  users: ColumnUser[];
}

const columnsOf = (relation: string) => `(
  SELECT json_agg(json_build_object(
    'name', attname, 'number', attnum, 'default', pg_get_expr(adbin, adrelid), 'identity', attidentity, 'generated', attgenerated,
    'type', format_type(atttypid, atttypmod) || CASE WHEN attcollation <> typcollation THEN
      (SELECT format(' COLLATE %I.%I', nspname, collname) FROM pg_collation JOIN pg_namespace AS n ON n.oid = collnamespace
       WHERE pg_collation.oid = attcollation) ELSE '' END,
    'storage', CASE WHEN attstorage <> typstorage THEN attstorage ELSE '' END, 'compression', nullif(attcompression, ''),
    'statistics', nullif(attstattarget, -1), 'options', attoptions, 'isInherited', attinhcount > 0, 'isMandatory', attnotnull) ORDER BY attnum)
  FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
  WHERE attrelid = ${relation} AND attnum > 0 AND NOT attisdropped)`;

const boundsOf = (condition: string) => `(
  SELECT json_agg(json_build_object(
    'name', conname, 'definition', pg_get_constraintdef(pg_constraint.oid), 'isValid', convalidated,
    'isInherited', coninhcount > 0, 'column', CASE contype WHEN 'n' THEN
      (SELECT attname FROM pg_attribute WHERE attrelid = conrelid AND attnum = conkey[1]) END) ORDER BY conname)
  FROM pg_constraint WHERE ${condition} AND contype IN ('c', 'n'))`;

const RELATIONS = `
  SELECT json_build_object('oid', c.oid::int8, 'kind', relkind, 'persistence', relpersistence, 'options', reloptions,
    'toast', (SELECT reloptions FROM pg_class AS t WHERE t.oid = c.reltoastrelid),
    'method', (SELECT amname FROM pg_am WHERE pg_am.oid = relam),
    'ofType', CASE WHEN reloftype <> 0 THEN format_type(reloftype, NULL) END,
    'identity', relreplident, 'isForced', relforcerowsecurity,
    'clustered', (SELECT relname FROM pg_index JOIN pg_class AS i ON i.oid = indexrelid WHERE indrelid = c.oid AND indisclustered),
    'parents', CASE WHEN NOT relispartition THEN (SELECT json_agg(format('%I.%I', n.nspname, p.relname) ORDER BY inhseqno)
      FROM pg_inherits JOIN pg_class AS p ON p.oid = inhparent JOIN pg_namespace AS n ON n.oid = p.relnamespace WHERE inhrelid = c.oid) END,
    'columns', ${columnsOf('c.oid')}, 'bounds', ${boundsOf('conrelid = c.oid')})::text AS fact
  FROM pg_class AS c WHERE c.oid = ANY ($1::oid[])`;

const TYPES = `
  SELECT json_build_object('oid', t.oid::int8, 'kind', typtype, 'default', typdefault, 'isMandatory', typnotnull,
    'labels', (SELECT json_agg(enumlabel ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = t.oid),
    'attributes', ${columnsOf('nullif(t.typrelid, 0)')}, 'bounds', ${boundsOf('contypid = t.oid')})::text AS fact
  FROM pg_type AS t WHERE t.oid = ANY ($1::oid[])`;

const SEQUENCES = `
  SELECT json_build_object('oid', seqrelid::int8, 'min', seqmin::text, 'max', seqmax::text, 'isAscending', seqincrement > 0)::text AS fact
  FROM pg_sequence WHERE seqrelid = ANY ($1::oid[])`;

/** A view depends by its rule. */
const USERS = `
  SELECT json_build_object('table', refobjid::int8, 'column', refobjsubid,
    'catalog', CASE classid WHEN 'pg_rewrite'::regclass THEN 'pg_class'::regclass::oid ELSE classid END::int8,
    'oid', coalesce((SELECT ev_class FROM pg_rewrite WHERE classid = 'pg_rewrite'::regclass AND pg_rewrite.oid = objid), objid)::int8)::text AS fact
  FROM pg_depend
  WHERE refclassid = 'pg_class'::regclass AND refobjid = ANY ($1::oid[]) AND refobjsubid > 0 AND deptype = 'n'
    AND classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass, 'pg_proc'::regclass,
      'pg_publication_rel'::regclass, 'pg_statistic_ext'::regclass)`;

/** @param session names are resolved in `pg_catalog`, so others are qualified */
export async function readFacts(session: Queryable, oids: readonly number[]): Promise<SchemaFacts> {
  const read = async <T>(query: string): Promise<T[]> =>
    (await session.query<{ fact: string }>(query, [oids])).rows.map(({ fact }) => JSON.parse(fact));
  const byOid = async <T extends { oid: number }>(query: string) =>
    new Map((await read<T>(query)).map((fact) => [fact.oid, fact]));
  return {
    relations: await byOid<RelationFacts>(RELATIONS),
    types: await byOid<TypeFacts>(TYPES),
    sequences: await byOid<SequenceFacts>(SEQUENCES),
    users: await read<ColumnUser>(USERS),
  };
}
