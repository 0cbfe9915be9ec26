import { identifier, literal } from '../../postgres/connect.ts';
import type { Bound, Column, RelationFacts, SequenceFacts, TypeFacts } from './schema-facts.ts';

/** Statements that alter one state of a relation, type or sequence into another. */
export interface Alteration {
  /** They take something away. What else is dropped may be what they referred to. */
  first: string[];
  next: string[];
  /** What differs, for a reader. */
  parts: {
    kind: 'column' | 'constraint' | 'attribute';
    name: string;
    change: 'added' | 'changed' | 'dropped';
    detail?: string;
  }[];
  details: string[];
  /** Numbers of columns of the first state whose users have to be made again. */
  columns: number[];
}

const nothing = (): Alteration => ({ first: [], next: [], parts: [], details: [], columns: [] });

const STORAGES: Record<string, string> = {
  p: 'PLAIN',
  e: 'EXTERNAL',
  m: 'MAIN',
  x: 'EXTENDED',
  '': 'DEFAULT',
};
const COMPRESSIONS: Record<string, string> = { p: 'pglz', l: 'lz4' };
const IDENTITIES = { a: 'ALWAYS', d: 'BY DEFAULT' };

const same = (a: unknown, b: unknown) => JSON.stringify(a) === JSON.stringify(b);
const byName = <T extends { name: string }>(list: readonly T[] | null) =>
  new Map((list ?? []).map((item) => [item.name, item]));

/** What of a table has an entry of its own in the dump: names of columns with a default, and of constraints. */
export interface OwnEntries {
  defaults: ReadonlySet<string>;
  bounds: ReadonlySet<string>;
}

const generation = ({ generated, default: expression }: Column) =>
  generated === '' ? '' : ` GENERATED ALWAYS AS (${expression}) ${generated === 's' ? 'STORED' : 'VIRTUAL'}`;

function columnDefinition(column: Column, bounds: readonly Bound[] | null, own: OwnEntries): string {
  const notNull = bounds?.find(
    (bound) => bound.column === column.name && bound.isValid && !own.bounds.has(bound.name),
  );
  const hasDefault = column.default !== null && column.generated === '' && !own.defaults.has(column.name);
  return [
    identifier(column.name),
    ` ${column.type}`,
    hasDefault ? ` DEFAULT ${column.default}` : generation(column),
    notNull
      ? ` CONSTRAINT ${identifier(notNull.name)} ${notNull.definition.replace(/^NOT NULL .*?( NO INHERIT)?$/s, 'NOT NULL$1')}`
      : '',
  ].join('');
}

/** Settings that a column has beside its type. */
function settings(alter: string, before: Column | undefined, after: Column): string[] {
  const statements: string[] = [];
  if ((before?.storage ?? '') !== after.storage)
    statements.push(`${alter} SET STORAGE ${STORAGES[after.storage]}`);
  if ((before?.compression ?? null) !== after.compression)
    statements.push(`${alter} SET COMPRESSION ${COMPRESSIONS[after.compression ?? ''] ?? 'default'}`);
  if ((before?.statistics ?? null) !== after.statistics)
    statements.push(`${alter} SET STATISTICS ${after.statistics ?? 'DEFAULT'}`);
  statements.push(...optionStatements(alter, before?.options ?? null, after.options));
  return statements;
}

function optionStatements(
  alter: string,
  before: readonly string[] | null,
  after: readonly string[] | null,
  prefix = '',
): string[] {
  const pairs = (list: readonly string[] | null) =>
    new Map(
      (list ?? []).map((option) => [
        option.slice(0, option.indexOf('=')),
        option.slice(option.indexOf('=') + 1),
      ]),
    );
  const old = pairs(before);
  const present = pairs(after);
  const reset = [...old.keys()].filter((name) => !present.has(name));
  const set = [...present].filter(([name, value]) => old.get(name) !== value);
  return [
    ...(reset.length > 0
      ? [`${alter} RESET (${reset.map((name) => prefix + identifier(name)).join(', ')})`]
      : []),
    ...(set.length > 0
      ? [
          `${alter} SET (${set.map(([name, value]) => `${prefix}${identifier(name)} = ${literal(value)}`).join(', ')})`,
        ]
      : []),
  ];
}

/** @param name of the relation, as a statement names it */
export function alterRelation(
  name: string,
  before: RelationFacts,
  after: RelationFacts,
  own: OwnEntries,
): Alteration {
  const found = nothing();
  const table = `ALTER TABLE ${name}`;
  const only = `ALTER TABLE ONLY ${name}`;
  const left = (before.parents ?? []).filter((parent) => !after.parents?.includes(parent));
  const joined = (after.parents ?? []).filter((parent) => !before.parents?.includes(parent));
  found.first.push(...left.map((parent) => `${table} NO INHERIT ${parent}`));
  // What a parent has is altered with it, unless the parent is another one.
  const ofParent = left.length + joined.length === 0;
  alterColumns(found, { table, only, ofParent }, before, after, own);
  alterBounds(found, { table, ofParent }, before, after, own);
  found.next.push(...joined.map((parent) => `${table} INHERIT ${parent}`));
  const changed = (detail: string, isSame: boolean, ...statements: string[]) => {
    if (isSame) return;
    found.details.push(detail);
    found.next.push(...statements);
  };
  changed('parents', left.length + joined.length === 0 && same(before.parents, after.parents));
  changed(
    'type',
    before.ofType === after.ofType,
    after.ofType === null ? `${table} NOT OF` : `${table} OF ${after.ofType}`,
  );
  changed(
    'persistence',
    before.persistence === after.persistence,
    `ALTER ${after.kind === 'S' ? 'SEQUENCE' : 'TABLE'} ${name} SET ${after.persistence === 'u' ? 'UNLOGGED' : 'LOGGED'}`,
  );
  changed(
    'access method',
    before.method === after.method,
    `${table} SET ACCESS METHOD ${after.method === null ? 'DEFAULT' : identifier(after.method)}`,
  );
  changed(
    'options',
    same(before.options, after.options),
    ...optionStatements(table, before.options, after.options),
  );
  changed(
    'options of long values',
    same(before.toast, after.toast),
    ...optionStatements(table, before.toast, after.toast, 'toast.'),
  );
  changed(
    'forced row security',
    before.isForced === after.isForced,
    `${only} ${after.isForced ? '' : 'NO '}FORCE ROW LEVEL SECURITY`,
  );
  const identities: Record<string, string> = { d: 'DEFAULT', n: 'NOTHING', f: 'FULL' };
  // Of an index: a part of its entry.
  changed(
    'replica identity',
    before.identity === after.identity,
    ...(identities[after.identity] ? [`${only} REPLICA IDENTITY ${identities[after.identity]}`] : []),
  );
  changed(
    'clustering',
    before.clustered === after.clustered,
    ...(after.clustered === null ? [`${table} SET WITHOUT CLUSTER`] : []),
  );
  return found;
}

interface Altered {
  /** The beginning of a statement. */
  table: string;
  only: string;
  /** Whether what is inherited is left to the parent. */
  ofParent: boolean;
}

function alterColumns(
  found: Alteration,
  { table, only, ofParent }: Altered,
  before: RelationFacts,
  after: RelationFacts,
  own: OwnEntries,
): void {
  const old = byName(before.columns);
  const present = byName(after.columns);
  for (const column of old.values()) {
    if (present.has(column.name)) continue;
    found.parts.push({ kind: 'column', name: column.name, change: 'dropped' });
    found.columns.push(column.number);
    if (!(ofParent && column.isInherited))
      found.first.push(`${table} DROP COLUMN ${identifier(column.name)}`);
  }
  for (const column of present.values()) {
    const known = old.get(column.name);
    const alter = `${table} ALTER COLUMN ${identifier(column.name)}`;
    const alone = `${only} ALTER COLUMN ${identifier(column.name)}`;
    const add = () => {
      if (!(ofParent && column.isInherited))
        found.next.push(`${table} ADD COLUMN ${columnDefinition(column, after.bounds, own)}`);
      found.next.push(...settings(alone, undefined, column));
    };
    if (!known) {
      found.parts.push({ kind: 'column', name: column.name, change: 'added' });
      add();
      continue;
    }
    const details = differences(known, column);
    if (details.length === 0) continue;
    found.parts.push({ kind: 'column', name: column.name, change: 'changed', detail: details.join(', ') });
    if (column.generated !== '' && known.generated !== column.generated) {
      // No value of its own is lost with it, if it was computed before.
      if (known.generated === '') continue;
      found.columns.push(known.number);
      found.first.push(`${table} DROP COLUMN ${identifier(column.name)}`);
      add();
      continue;
    }
    if (known.generated !== '' && column.generated === '') found.next.push(`${alone} DROP EXPRESSION`);
    else if (column.generated !== '' && known.default !== column.default)
      found.next.push(`${alter} SET EXPRESSION AS (${column.default})`);
    else if (known.default !== column.default && column.generated === '') {
      if (known.default !== null) found.first.push(`${alone} DROP DEFAULT`);
      if (column.default !== null && !own.defaults.has(column.name))
        found.next.push(`${alone} SET DEFAULT ${column.default}`);
    }
    if (known.type !== column.type) {
      found.columns.push(known.number);
      // The default may not be one of the new type.
      const isReset = known.default === column.default && column.default !== null && column.generated === '';
      if (isReset) found.first.push(`${alone} DROP DEFAULT`);
      if (!(ofParent && column.isInherited))
        found.next.push(
          `${alter} TYPE ${column.type}${column.generated === '' ? ` USING ${identifier(column.name)}::${column.type.replace(/ COLLATE .*$/s, '')}` : ''}`,
        );
      if (isReset && !own.defaults.has(column.name))
        found.next.push(`${alone} SET DEFAULT ${column.default}`);
    }
    if (known.identity !== '' && column.identity === '') found.first.push(`${alter} DROP IDENTITY`);
    else if (known.identity !== '' && column.identity !== '' && known.identity !== column.identity)
      found.next.push(`${alter} SET GENERATED ${IDENTITIES[column.identity]}`);
    found.next.push(...settings(alone, known, column));
  }
  const shared = (columns: readonly Column[] | null, others: ReadonlyMap<string, unknown>) =>
    (columns ?? []).filter(({ name }) => others.has(name)).map(({ name }) => name);
  if (!same(shared(before.columns, present), shared(after.columns, old)))
    found.details.push('order of columns');
}

const COMPARED: Record<string, (column: Column) => unknown> = {
  type: ({ type }) => type,
  default: ({ default: expression }) => expression,
  identity: ({ identity }) => identity,
  generation: ({ generated }) => generated,
  storage: ({ storage }) => storage,
  compression: ({ compression }) => compression,
  'statistics target': ({ statistics }) => statistics,
  options: ({ options }) => options,
  inheritance: ({ isInherited }) => isInherited,
};
const differences = (a: Column, b: Column) =>
  Object.entries(COMPARED).flatMap(([detail, of]) => (same(of(a), of(b)) ? [] : [detail]));

const sameBound = (a: Bound, b: Bound) => a.definition === b.definition && a.isValid === b.isValid;
const becomesValid = (a: Bound | undefined, b: Bound | undefined) =>
  a && b && !a.isValid && b.isValid && a.definition.replace(/ NOT VALID$/, '') === b.definition;

/** Checks, and the constraints of NOT NULL. */
function alterBounds(
  found: Alteration,
  { table, ofParent }: Pick<Altered, 'table' | 'ofParent'>,
  before: Pick<RelationFacts, 'bounds' | 'columns'>,
  after: Pick<RelationFacts, 'bounds' | 'columns'>,
  own: OwnEntries,
): void {
  const old = byName(before.bounds);
  const present = byName(after.bounds);
  const columns = byName(after.columns);
  const olds = byName(before.columns);
  /** Goes with its column, or comes with it. */
  const isOfColumn = ({ column }: Bound, others: ReadonlyMap<string, unknown>) =>
    column !== null && !others.has(column);
  const listed = (bound: Bound, change: 'added' | 'changed' | 'dropped') => {
    if (!isOfColumn(bound, change === 'dropped' ? columns : olds))
      found.parts.push({ kind: 'constraint', name: bound.name, change });
  };
  for (const bound of old.values()) {
    const next = present.get(bound.name);
    if (next && sameBound(bound, next)) continue;
    if (!next) listed(bound, 'dropped');
    if ((ofParent && bound.isInherited) || isOfColumn(bound, columns)) continue;
    if (!becomesValid(bound, next)) found.first.push(`${table} DROP CONSTRAINT ${identifier(bound.name)}`);
  }
  for (const bound of present.values()) {
    const known = old.get(bound.name);
    if (known && sameBound(known, bound)) continue;
    listed(bound, known ? 'changed' : 'added');
    if ((ofParent && bound.isInherited) || own.bounds.has(bound.name)) continue;
    if (bound.column !== null && isOfColumn(bound, olds) && bound.isValid) continue;
    found.next.push(
      becomesValid(known, bound)
        ? `${table} VALIDATE CONSTRAINT ${identifier(bound.name)}`
        : `${table} ADD CONSTRAINT ${identifier(bound.name)} ${bound.definition}`,
    );
  }
}

/** @returns null if one type cannot be altered into the other */
export function alterType(name: string, before: TypeFacts, after: TypeFacts): Alteration | null {
  if (before.kind !== after.kind) return null;
  if (after.kind === 'e') return alterEnum(name, before.labels ?? [], after.labels ?? []);
  if (after.kind === 'c') return alterComposite(name, byName(before.attributes), byName(after.attributes));
  return after.kind === 'd' ? alterDomain(name, before, after) : null;
}

function alterEnum(name: string, before: readonly string[], after: readonly string[]): Alteration | null {
  const found = nothing();
  found.details.push('values');
  const known = new Set(before);
  const kept = after.filter((label) => known.has(label));
  if (kept.length < before.length) {
    // Values that were renamed have the places of others.
    if (before.length !== after.length || after.some((label, at) => known.has(label) && before[at] !== label))
      return null;
    for (const [at, label] of after.entries())
      if (before[at] !== label)
        found.next.push(`ALTER TYPE ${name} RENAME VALUE ${literal(before[at] ?? '')} TO ${literal(label)}`);
    return found;
  }
  if (!same(kept, before)) return null;
  for (const [at, label] of after.entries()) {
    if (known.has(label)) continue;
    const previous = after[at - 1];
    const place =
      previous === undefined
        ? before[0] === undefined
          ? ''
          : ` BEFORE ${literal(before[0])}`
        : ` AFTER ${literal(previous)}`;
    found.next.push(`ALTER TYPE ${name} ADD VALUE ${literal(label)}${place}`);
  }
  return found;
}

function alterComposite(
  name: string,
  before: ReadonlyMap<string, Column>,
  after: ReadonlyMap<string, Column>,
): Alteration {
  const found = nothing();
  for (const old of before.keys())
    if (!after.has(old)) {
      found.parts.push({ kind: 'attribute', name: old, change: 'dropped' });
      found.next.push(`ALTER TYPE ${name} DROP ATTRIBUTE ${identifier(old)}`);
    }
  for (const attribute of after.values()) {
    const known = before.get(attribute.name);
    if (known?.type === attribute.type) continue;
    found.parts.push({ kind: 'attribute', name: attribute.name, change: known ? 'changed' : 'added' });
    found.next.push(
      `ALTER TYPE ${name} ${known ? 'ALTER' : 'ADD'} ATTRIBUTE ${identifier(attribute.name)}${known ? ' TYPE' : ''} ${attribute.type}`,
    );
  }
  return found;
}

function alterDomain(name: string, before: TypeFacts, after: TypeFacts): Alteration {
  const found = nothing();
  found.details.push('definition');
  const alter = `ALTER DOMAIN ${name}`;
  if (before.default !== after.default)
    found.next.push(
      after.default === null ? `${alter} DROP DEFAULT` : `${alter} SET DEFAULT ${after.default}`,
    );
  const checks = ({ bounds }: TypeFacts) =>
    (bounds ?? []).filter(({ definition }) => !definition.startsWith('NOT NULL'));
  const notNull = ({ bounds }: TypeFacts) =>
    (bounds ?? []).find(({ definition }) => definition.startsWith('NOT NULL'));
  alterBounds(
    found,
    { table: alter, ofParent: true },
    { bounds: checks(before), columns: null },
    { bounds: checks(after), columns: null },
    { defaults: new Set(), bounds: new Set() },
  );
  const old = notNull(before);
  const present = notNull(after);
  if (old?.name !== present?.name) {
    if (old) found.next.push(`${alter} DROP NOT NULL`);
    if (present) found.next.push(`${alter} ADD CONSTRAINT ${identifier(present.name)} NOT NULL`);
  }
  return found;
}

/**
 * Moves the value of a sequence into its new range, at the time when the statement runs: the value is no part
 * of the schema. A sequence that has gone beyond its new end is used up, as PostgreSQL would say.
 */
export function intoRange(name: string, before: SequenceFacts, after: SequenceFacts): string[] {
  const [oldMin, oldMax, min, max] = [before.min, before.max, after.min, after.max].map(BigInt) as [
    bigint,
    bigint,
    bigint,
    bigint,
  ];
  if (oldMin >= min && oldMax <= max) return [];
  if (oldMax < min || oldMin > max) return [];
  const isUsedUp = after.isAscending ? `last_value > ${max}` : `last_value < ${min}`;
  return [
    `SELECT pg_catalog.setval(${literal(name)}, LEAST(GREATEST(last_value, ${min}), ${max}), ${isUsedUp}) FROM ${name} WHERE last_value NOT BETWEEN ${min} AND ${max}`,
  ];
}
