import { identifier, literal, type Session } from '../postgres/connect.ts';
import type { MaskedTable } from './plan.ts';

/** A table, with what the transaction takes off it and puts back. */
export type Affected = readonly MaskedTable[];

/** Statements that make way for the change of values, and those that put everything back, in their order. */
export interface Detour {
  before: string[];
  after: string[];
}

export const oidsOf = (tables: Affected) => tables.map(({ oid }) => oid);

export const COMMENT_OF = (catalog: string, oid: string) => `obj_description(${oid}, '${catalog}')`;

/** An index that keeps values unique or apart, with the constraint that it is of. */
interface KeyIndex {
  oid: string;
  /** The index of a partition is a part of this one. */
  parent: string | null;
  /** That of the outermost table. */
  root: string;
  relation_oid: string;
  relation: string;
  name: string;
  definition: string;
  constraint_name: string | null;
  constraint_definition: string | null;
  comment: string | null;
  index: string;
  is_identity: boolean;
  is_clustered: boolean;
  columns: (string | null)[];
  generated: boolean;
}

/** Those of a table come before those of its partitions. */
async function readKeys(session: Session, affected: Affected): Promise<KeyIndex[]> {
  const { rows } = await session.query<KeyIndex>(
    `WITH RECURSIVE tree (oid, root, depth) AS (
       SELECT oid, oid, 0 FROM pg_class WHERE relkind IN ('i', 'I') AND NOT relispartition
       UNION ALL SELECT inhrelid, root, depth + 1 FROM pg_inherits JOIN tree ON inhparent = tree.oid
     )
     SELECT indexrelid::text AS oid, inhparent::regclass::text AS parent, root::text AS root,
       indrelid::text AS relation_oid, indrelid::regclass::text AS relation,
       coalesce(conname, relname)::text AS name, pg_get_indexdef(indexrelid) AS definition,
       conname::text AS constraint_name, pg_get_constraintdef(pg_constraint.oid) AS constraint_definition,
       coalesce(${COMMENT_OF('pg_constraint', 'pg_constraint.oid')}, ${COMMENT_OF('pg_class', 'indexrelid')}) AS comment,
       indexrelid::regclass::text AS index, indisreplident AS is_identity, indisclustered AS is_clustered,
       ARRAY (SELECT attname::text FROM unnest(indkey) AS keys (key) LEFT JOIN pg_attribute ON attrelid = indrelid AND attnum = key AND attnum > 0) AS columns,
       EXISTS (SELECT FROM unnest(indkey) AS keys (key) JOIN pg_attribute ON attrelid = indrelid AND attnum = key WHERE attgenerated <> '') AS generated
     FROM tree JOIN pg_index ON indexrelid = tree.oid JOIN pg_class ON pg_class.oid = indexrelid
     LEFT JOIN pg_inherits ON inhrelid = indexrelid
     LEFT JOIN pg_constraint ON conindid = indexrelid AND contype IN ('p', 'u', 'x')
     WHERE (indrelid = ANY ($1::oid[]) OR root IN (SELECT indexrelid FROM pg_index WHERE indrelid = ANY ($1::oid[])))
       AND (indisunique OR indisexclusion)
     ORDER BY depth, indexrelid`,
    [oidsOf(affected)],
  );
  return rows;
}

/** Statements that make it again. Of a partitioned table, that of the table alone. */
function remaking({
  relation,
  constraint_name,
  constraint_definition,
  definition,
  index,
  comment,
  ...one
}: KeyIndex): string[] {
  const name = identifier(one.name);
  const subject = constraint_name === null ? `INDEX ${index}` : `CONSTRAINT ${name} ON ${relation}`;
  return [
    constraint_name === null
      ? definition
      : `ALTER TABLE ONLY ${relation} ADD CONSTRAINT ${name} ${constraint_definition}`,
    ...(comment === null ? [] : [`COMMENT ON ${subject} IS ${literal(comment)}`]),
  ];
}

/**
 * Foreign keys over masked columns, and what keeps them unique: PostgreSQL checks each row as it is changed,
 * and a new value can be one that another row still has.
 */
export async function keys(
  session: Session,
  affected: Affected,
  isMasked: (oid: string, column: string) => boolean,
  { isForeignOnly }: { isForeignOnly: boolean },
): Promise<Detour> {
  const indexes = await readKeys(session, affected);
  const isChanged = ({ relation_oid, columns, generated }: KeyIndex) =>
    generated || columns.some((column) => column === null || isMasked(relation_oid, column));
  // An index of a partition goes and comes with that of the table.
  const changed = new Set(isForeignOnly ? [] : indexes.filter(isChanged).map(({ root }) => root));
  const dropped = indexes.filter(({ root }) => changed.has(root));
  const { rows: foreign } = await session.query<{
    relation: string;
    name: string;
    definition: string;
    comment: string | null;
    from: string;
    from_columns: string[];
    to: string;
    to_columns: string[];
    index: string;
  }>(
    `SELECT conrelid::regclass::text AS relation, conname::text AS name, pg_get_constraintdef(oid) AS definition,
       ${COMMENT_OF('pg_constraint', 'oid')} AS comment,
       conrelid::text AS "from", confrelid::text AS "to", conindid::text AS index,
       ARRAY (SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey)) AS from_columns,
       ARRAY (SELECT attname::text FROM pg_attribute WHERE attrelid = confrelid AND attnum = ANY (confkey)) AS to_columns
     FROM pg_constraint WHERE contype = 'f' AND conparentid = 0`,
  );
  const doomed = new Set(dropped.map(({ oid }) => oid));
  const cut = foreign.filter(
    ({ from, from_columns, to, to_columns, index }) =>
      doomed.has(index) ||
      from_columns.some((column) => isMasked(from, column)) ||
      to_columns.some((column) => isMasked(to, column)),
  );
  return {
    before: [
      ...cut.map(({ relation, name }) => `ALTER TABLE ${relation} DROP CONSTRAINT ${identifier(name)}`),
      ...dropped
        .filter(({ parent }) => parent === null)
        .map(({ oid, relation, constraint_name }) =>
          constraint_name === null
            ? `DO $do$ BEGIN EXECUTE 'DROP INDEX ' || ${oid}::oid::regclass; END $do$`
            : `ALTER TABLE ${relation} DROP CONSTRAINT ${identifier(constraint_name)}`,
        ),
    ],
    after: [
      ...dropped.flatMap(remaking),
      // As a dump does: a table's own index is finished when those of its partitions are attached.
      ...dropped.flatMap(({ index, parent }) =>
        parent === null ? [] : [`ALTER INDEX ${parent} ATTACH PARTITION ${index}`],
      ),
      ...dropped.flatMap(({ relation, name, is_identity, is_clustered }) => [
        ...(is_identity
          ? [`ALTER TABLE ONLY ${relation} REPLICA IDENTITY USING INDEX ${identifier(name)}`]
          : []),
        ...(is_clustered ? [`ALTER TABLE ONLY ${relation} CLUSTER ON ${identifier(name)}`] : []),
      ]),
      ...cut.flatMap(({ relation, name, definition, comment }) => [
        `ALTER TABLE ${relation} ADD CONSTRAINT ${identifier(name)} ${definition}`,
        ...(comment === null
          ? []
          : [`COMMENT ON CONSTRAINT ${identifier(name)} ON ${relation} IS ${literal(comment)}`]),
      ]),
    ],
  };
}
