import { buildFactBase, type Delta, type Fact, type FactBase, type StableId } from '@supabase/pg-delta/core';
import { identifier, literal } from '../../postgres/connect.ts';

/** Changes for which the library's own statements fail, or would drop a table with its rows. */
interface OwnStatements {
  /** The first side, as it is when the statements of inheritance have run. */
  before: FactBase;
  changes: Delta[];
  /** They run before the library's statements. */
  first: string[];
  last: string[];
}

export function ownStatements(before: FactBase, after: FactBase): OwnStatements {
  const moved = inheritances(before, after);
  return {
    before: moved.length === 0 ? before : withParents(before, moved),
    changes: moved.map(({ table, from, to }) => ({
      verb: 'set',
      id: table.id,
      attr: 'parentTable',
      from: asPayload(from),
      to: asPayload(to),
    })),
    first: [
      ...moved.flatMap(({ table, from }) => (from ? [inherit(table, 'NO INHERIT', from)] : [])),
      ...rangesOf(after).flatMap((range) => intoRange(range, before)),
    ],
    last: moved.flatMap(({ table, to }) => (to ? [inherit(table, 'INHERIT', to)] : [])),
  };
}

interface TableId {
  kind: 'table';
  schema: string;
  name: string;
}
type Parent = Pick<TableId, 'schema' | 'name'> | null;

/** A table that inherits from another table than before, or no longer. */
interface Inheritance {
  table: Fact & { id: TableId };
  from: Parent;
  to: Parent;
}

const isTable = (fact: Fact): fact is Inheritance['table'] => fact.id.kind === 'table';
const isPartition = ({ payload }: Fact) => payload.partitionBound !== null;
const parentOf = ({ payload }: Fact) => (payload.parentTable ?? null) as Parent;
const asPayload = (parent: Parent) => parent && { schema: parent.schema, name: parent.name };
const tableId = ({ schema, name }: NonNullable<Parent>): TableId => ({ kind: 'table', schema, name });
const relation = ({ schema, name }: NonNullable<Parent>) => `${identifier(schema)}.${identifier(name)}`;

/** Inheritance that changes without the columns of a table. */
function inheritances(before: FactBase, after: FactBase): Inheritance[] {
  return after.facts().flatMap((table) => {
    const old = isTable(table) ? before.get(table.id) : undefined;
    if (!isTable(table) || !old || isPartition(table) || isPartition(old)) return [];
    const [from, to] = [parentOf(old), parentOf(table)];
    const isSame = from?.schema === to?.schema && from?.name === to?.name;
    return !isSame && ownsColumnsOf(before, table.id, from) && ownsColumnsOf(after, table.id, to)
      ? [{ table, from, to }]
      : [];
  });
}

/** Whether the table has all columns of the parent as its own, so that they do not come and go with it. */
function ownsColumnsOf(side: FactBase, table: TableId, parent: Parent): boolean {
  if (parent === null) return true;
  const found = side.get(tableId(parent));
  // The columns that the parent inherits itself are not listed.
  if (!found || parentOf(found)) return false;
  const own = new Set(columnsOf(side, table));
  return columnsOf(side, tableId(parent)).every((name) => own.has(name));
}

const columnsOf = (side: FactBase, table: TableId): string[] =>
  side.childrenOf(table).flatMap(({ id }) => (id.kind === 'column' ? [id.name] : []));

const inherit = ({ id }: Inheritance['table'], how: 'INHERIT' | 'NO INHERIT', parent: NonNullable<Parent>) =>
  `ALTER TABLE ${relation(id)} ${how} ${relation(parent)}`;

function withParents(side: FactBase, moved: readonly Inheritance[]): FactBase {
  const keyOf = ({ schema, name }: NonNullable<Parent>) => JSON.stringify([schema, name]);
  const byTable = new Map(moved.map((change) => [keyOf(change.table.id), change]));
  const changeOf = (id: StableId) => (id.kind === 'table' ? byTable.get(keyOf(id)) : undefined);
  const facts = side.facts().map((fact) => {
    const change = changeOf(fact.id);
    return change ? { ...fact, payload: { ...fact.payload, parentTable: asPayload(change.to) } } : fact;
  });
  const leadsToParent = ({ from, to }: FactBase['edges'][number]) => {
    const parent = changeOf(from)?.from;
    return parent && to.kind === 'table' && keyOf(to) === keyOf(parent);
  };
  return buildFactBase(
    facts,
    side.edges.filter((edge) => !leadsToParent(edge)),
    side.source,
  );
}

/** The range of a sequence, also of one that belongs to an identity column. */
interface SequenceRange {
  id: StableId;
  sequence: NonNullable<Parent>;
  min: bigint;
  max: bigint;
  isAscending: boolean;
}

interface Options {
  minValue: string;
  maxValue: string;
  increment: string;
}

const rangesOf = (side: FactBase): SequenceRange[] =>
  side.facts().flatMap((fact) => {
    const range = rangeOf(fact);
    return range ? [range] : [];
  });

function rangeOf({ id, payload }: Fact): SequenceRange | null {
  const identity = payload.identity as { sequence: Parent; options: Options | null } | null | undefined;
  const [sequence, options] =
    id.kind === 'sequence'
      ? [id, payload as unknown as Options]
      : [identity?.sequence ?? null, identity?.options ?? null];
  if (!sequence || !options) return null;
  const [min, max] = [BigInt(options.minValue), BigInt(options.maxValue)];
  return { id, sequence, min, max, isAscending: BigInt(options.increment) > 0n };
}

/**
 * Moves the value of a sequence into its new range, at the time when the statement runs: the value is no part
 * of the schema. A sequence that has gone beyond its new end is used up, as PostgreSQL would say.
 */
function intoRange({ id, min, max, isAscending }: SequenceRange, before: FactBase): string[] {
  const fact = before.get(id);
  const old = fact && rangeOf(fact);
  // No value can be outside, or the library restarts the sequence.
  if (!old || (old.min >= min && old.max <= max) || old.max < min || old.min > max) return [];
  const name = relation(old.sequence);
  const isUsedUp = isAscending ? `last_value > ${max}` : `last_value < ${min}`;
  return [
    `SELECT pg_catalog.setval(${literal(name)}, LEAST(GREATEST(last_value, ${min}), ${max}), ${isUsedUp}) FROM ${name} WHERE last_value NOT BETWEEN ${min} AND ${max}`,
  ];
}
