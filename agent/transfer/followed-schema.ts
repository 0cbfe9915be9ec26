import { createHash } from 'node:crypto';
import {
  factsNeeded,
  identityOf,
  kindOf,
  planStatements,
  type SchemaPlan,
} from '../difference/schema/plan-statements.ts';
import {
  differentPairs,
  type EntryPair,
  isEqual,
  isIdentity,
  pairEntries,
  type SchemaEntry,
  schemaEntries,
} from '../difference/schema/schema-entries.ts';
import type { Bound, Column, RelationFacts, SchemaFacts } from '../difference/schema/schema-facts.ts';
import type { Archive } from '../dump/archive.ts';
import { type Choice, planRestore } from '../dump/restore.ts';
import { identifier } from '../postgres/connect.ts';

/** How the schema of a source differs from that of the branch that follows it, by the entries of their dumps. */

export type Named = readonly [schema: string, name: string];

export interface CopiedSchema {
  entries: SchemaEntry[];
  /** Tables with policies that apply to their owner too. PostgreSQL replicates into none, so the branch has them at its end. */
  forced: Named[];
}

/** The last statement of a table's entry. A quoted name can have anything in it. */
const FORCED = /\nALTER TABLE ONLY (?:[^\n"]|"(?:[^"]|"")*")+ FORCE ROW LEVEL SECURITY;\n$/;

/** Returns the entries of a dump that a copy has. */
export function copiedSchema(archive: Archive, choice: Choice): CopiedSchema {
  const { first, indexes, last, policies } = planRestore(archive, choice);
  const made = new Set([first, indexes.flat(), last, policies].flat());
  const entries = schemaEntries(archive.filter((entry) => made.has(entry)));
  const forced: Named[] = [];
  for (const entry of entries) {
    if (entry.kind !== 'TABLE' || !FORCED.test(entry.definition)) continue;
    entry.definition = entry.definition.replace(FORCED, '');
    forced.push([entry.schema ?? '', entry.tag]);
  }
  return { entries, forced };
}

/** The texts of both sides, by which a difference is known again. */
function digestOf({ before, after }: EntryPair): string {
  const texts = [before, after].map(
    (entry) => entry && [entry.kind, entry.schema, entry.tag, entry.definition, entry.accessMethod],
  );
  return createHash('sha256').update(JSON.stringify(texts)).digest('base64url');
}

/** Returns the differences between a branch and its source after a copy or an addition. They are not reported later. */
export async function readLeft(here: ReadSide, there: ReadSide): Promise<string[]> {
  const pairs = pairEntries(here.entries, there.entries);
  const ours = await here.facts(factsNeeded(pairs, 'before'));
  const theirs = await there.facts(factsNeeded(pairs, 'after'));
  const left = pairs.filter((pair) => !isEqual(pair));
  return [...left.map(digestOf), ...differentExpressions(left, ours, theirs)];
}

/**
 * Expressions that differ in their text alone, because PostgreSQL writes some in another way once they are made again. The
 * entry of their table changes with each column, so each of them is known by itself.
 * @param pairs that are left after a copy or an addition
 */
const differentExpressions = (
  pairs: readonly EntryPair[],
  ours: SchemaFacts,
  theirs: SchemaFacts,
): string[] =>
  pairs.flatMap(({ before, after }) => {
    const here = ours.relations.get(before?.oid ?? 0);
    const there = theirs.relations.get(after?.oid ?? 0);
    if (!after || !here || !there) return [];
    const texts = expressionsOf(here);
    return [...expressionsOf(there)].flatMap(([name, text]) => {
      const own = texts.get(name);
      return own === undefined || own === text ? [] : [expressionDigest(after, name, own, text)];
    });
  });

/** Texts of defaults and checks by the name of the column or constraint. */
function expressionsOf({ columns, bounds }: RelationFacts): Map<string, string> {
  return new Map([
    ...(columns ?? []).flatMap(({ name, default: text }): [string, string][] =>
      text === null ? [] : [[`default ${name}`, text]],
    ),
    ...(bounds ?? []).map(({ name, definition }): [string, string] => [`bound ${name}`, definition]),
  ]);
}

const expressionDigest = (
  { schema, tag }: Pick<SchemaEntry, 'schema' | 'tag'>,
  name: string,
  ...texts: string[]
): string =>
  createHash('sha256')
    .update(JSON.stringify([schema, tag, name, texts]))
    .digest('base64url');

/** The expressions of `theirs`, with the text of `ours` for each that is known. */
function withKnownTexts(
  entry: SchemaEntry,
  ours: RelationFacts,
  theirs: RelationFacts,
  known: ReadonlySet<string>,
): Pick<RelationFacts, 'columns' | 'bounds'> {
  const texts = expressionsOf(ours);
  const textOf = <T extends string | null>(name: string, text: T): T | string => {
    const own = texts.get(name);
    const isKnown = own !== undefined && text !== null && known.has(expressionDigest(entry, name, own, text));
    return isKnown ? own : text;
  };
  return {
    columns:
      theirs.columns?.map((column) => ({
        ...column,
        default: textOf(`default ${column.name}`, column.default),
      })) ?? null,
    bounds:
      theirs.bounds?.map((bound) => ({
        ...bound,
        definition: textOf(`bound ${bound.name}`, bound.definition),
      })) ?? null,
  };
}

/** One side, with what its catalogs say of objects. */
export interface ReadSide {
  entries: SchemaEntry[];
  facts: (oids: readonly number[]) => Promise<SchemaFacts>;
}

/** The changes that lead from a branch to the present schema of its source. */
export interface SourceChanges {
  statements: string[];
  /** True if all of them only make additions that every row of the branch can have, so they run without a request. */
  areAdditions: boolean;
  /** Changed objects that no statement changes here, as `kind name`. */
  unmodelled: string[];
  /** Tables with values of the source that are in none of its changes. */
  lost: Named[];
  /** Tables with a column that only holds more than before. `USING` may still have computed other values. */
  widened: Named[];
  newTables: Named[];
  /** All differences, in the form of `known`. */
  left: string[];
  /** Facts of the source about the objects that differ. */
  facts: SchemaFacts;
}

/** @param known differences that are no news */
export async function readChanges(
  here: ReadSide,
  there: ReadSide,
  known: ReadonlySet<string>,
): Promise<SourceChanges> {
  const [ours, theirs] = withoutKnown(here.entries, there.entries, known);
  const pairs = pairEntries(ours, theirs);
  const different = differentPairs(pairs);
  // Statements of new tables are needed once the tables are made.
  const made = different.flatMap(({ before, after }) =>
    before === null && after?.kind === 'TABLE' ? after.oid : [],
  );
  const old = await here.facts(factsNeeded(pairs, 'before'));
  const read = await there.facts([...factsNeeded(pairs, 'after'), ...made]);
  const present = comparable(different, old, read, known);
  const plan = planStatements({ entries: ours, facts: old }, { entries: theirs, facts: present });
  const columns = different.flatMap((pair) => columnChanges(pair, old, present));
  const isNew = newObjects(different);
  const modelled = new Set(plan.statements.map(({ of }) => of));
  return {
    statements: plan.statements.map(({ text }) => text.trim().replace(/;$/, '')),
    areAdditions:
      plan.statements.every(({ act }) => act !== 'drop') &&
      different.every(
        (pair) => isEqual(pair) || isAddition(pair, plan, isNew) || addsLabels(pair, old, present),
      ) &&
      columns.every(({ added }) => added.every((column) => isPlain(column.column, column.isMandatory))),
    unmodelled: different.filter((pair) => !isEqual(pair) && !isModelled(pair, modelled)).map(nameOfPair),
    lost: columns.filter(losesValues).map(({ table }) => table),
    widened: columns.filter(({ widened }) => widened > 0).map(({ table }) => table),
    left: pairs.filter((pair) => !isEqual(pair)).map(digestOf),
    facts: read,
    newTables: different.flatMap(({ before, after }): Named[] =>
      before === null && after?.kind === 'TABLE' ? [[after.schema ?? '', after.tag]] : [],
    ),
  };
}

/** A known difference counts as none: as if the source had what the branch has. */
function withoutKnown(
  here: readonly SchemaEntry[],
  there: readonly SchemaEntry[],
  known: ReadonlySet<string>,
): [SchemaEntry[], SchemaEntry[]] {
  if (known.size === 0) return [[...here], [...there]];
  const left = new Set<SchemaEntry>();
  for (const pair of pairEntries(here, there)) {
    const { before, after } = pair;
    if (isEqual(pair) || !known.has(digestOf(pair))) continue;
    if (before && after)
      Object.assign(after, { definition: before.definition, accessMethod: before.accessMethod });
    else for (const entry of [before, after]) if (entry) left.add(entry);
  }
  return [here.filter((entry) => !left.has(entry)), there.filter((entry) => !left.has(entry))];
}

/**
 * Servers before version 18 have no constraints of NOT NULL, so those of the branch count as the source's. Policies are
 * forced on both sides, or on none.
 */
function comparable(
  pairs: readonly EntryPair[],
  old: SchemaFacts,
  read: SchemaFacts,
  known: ReadonlySet<string>,
): SchemaFacts {
  const relations = new Map(read.relations);
  const types = new Map(read.types);
  for (const { before, after } of pairs) {
    if (!before || !after) continue;
    const ours = old.relations.get(before.oid);
    const theirs = relations.get(after.oid);
    if (ours && theirs) {
      const same = withKnownTexts(after, ours, theirs, known);
      const isBound = new Set((theirs.bounds ?? []).flatMap(({ column }) => column ?? []));
      const bounds = (theirs.columns ?? []).flatMap(({ name, isMandatory, isInherited }): Bound[] => {
        if (!isMandatory || isBound.has(name)) return [];
        const own = ours.bounds?.find(({ column }) => column === name);
        return [own ?? { ...notNull(`${after.tag}_${name}`, name), isInherited, column: name }];
      });
      relations.set(after.oid, {
        ...theirs,
        columns: same.columns,
        bounds: [...(same.bounds ?? []), ...bounds],
        isForced: ours.isForced,
      });
    }
    const ourType = old.types.get(before.oid);
    const type = types.get(after.oid);
    if (!ourType || !type?.isMandatory || type.bounds?.some(isNotNull)) continue;
    const bound = ourType.bounds?.find(isNotNull) ?? notNull(after.tag, null);
    types.set(after.oid, { ...type, bounds: [...(type.bounds ?? []), bound] });
  }
  return { ...read, relations, types };
}

const isNotNull = ({ definition }: Bound) => definition.startsWith('NOT NULL');

/** @param column null: of a domain */
const notNull = (name: string, column: string | null): Bound => ({
  name: `${name}_not_null`,
  definition: column === null ? 'NOT NULL' : `NOT NULL ${identifier(column)}`,
  isValid: true,
  isInherited: false,
  column,
});

interface ColumnChanges {
  table: Named;
  added: { column: Column; isMandatory: boolean }[];
  dropped: number;
  /** Values were converted, which `USING` may have done in any way. */
  converted: number;
  widened: number;
}

function columnChanges(
  { before, after }: EntryPair,
  old: SchemaFacts,
  present: SchemaFacts,
): ColumnChanges[] {
  const ours = old.relations.get(before?.oid ?? 0);
  const theirs = present.relations.get(after?.oid ?? 0);
  if (!before || after?.kind !== 'TABLE' || !ours || !theirs) return [];
  const olds = new Map((ours.columns ?? []).map((column) => [column.name, column]));
  const changes: ColumnChanges = {
    table: [after.schema ?? '', after.tag],
    added: [],
    dropped: 0,
    converted: 0,
    widened: 0,
  };
  for (const column of theirs.columns ?? []) {
    const known = olds.get(column.name);
    olds.delete(column.name);
    const isMandatory = (theirs.bounds ?? []).some((bound) => bound.column === column.name);
    if (!known) changes.added.push({ column, isMandatory });
    // A generated column is computed from the others again, here as there.
    else if (known.type !== column.type && column.generated === '') {
      if (isWidened(known.type, column.type)) changes.widened += 1;
      else changes.converted += 1;
    }
  }
  return [{ ...changes, dropped: olds.size }];
}

/** Returns whether columns lose values: new ones with a computed default, renamed ones, and those of another type. */
const losesValues = ({ added, dropped, converted }: ColumnChanges): boolean =>
  converted > 0 ||
  added.some(
    ({ column, isMandatory }) => column.generated === '' && (dropped > 0 || !isPlain(column, isMandatory)),
  );

/** A value that is the same for each row. Any other default may have given each row of the source another one. */
const CONSTANT =
  /^\(?(?:'(?:[^']|'')*'|[-+]?[\d.]+(?:e[-+]?\d+)?|true|false|NULL)\)?(?:::[\w ."(),]+(?:\[\])*)?$/i;

/** Returns whether the rows that are here get the values that they have at the source. */
const isPlain = (column: Column, isMandatory: boolean): boolean =>
  column.identity === '' &&
  column.generated === '' &&
  (column.default === null ? !isMandatory : CONSTANT.test(column.default));

const INTEGERS = ['smallint', 'integer', 'bigint'];

/** Types whose values stay the same in a larger type of their family. */
const SIZES: [pattern: RegExp, sizeOf: (...parts: string[]) => [family: string, size: number]][] = [
  [/^(smallint|integer|bigint)$/, (name = '') => ['integer', INTEGERS.indexOf(name)]],
  [/^(?:text|character varying(?:\((\d+)\))?)$/, (length = 'Infinity') => ['text', Number(length)]],
  [/^numeric\((\d+),(-?\d+)\)$/, (precision, scale) => [`numeric with scale ${scale}`, Number(precision)]],
];

function sizeOf(type: string): [family: string, size: number] | null {
  for (const [pattern, read] of SIZES) {
    const found = pattern.exec(type);
    if (found) return read(...found.slice(1));
  }
  return null;
}

/** Returns whether a column of the first type becomes one of the second only to hold more, so that a plain cast is what was meant. */
export function isWidened(from: string, to: string): boolean {
  const narrow = sizeOf(from);
  const wide = sizeOf(to);
  return from !== to && narrow !== null && narrow[0] === wide?.[0] && narrow[1] <= wide[1];
}

/** Kinds that change nothing of what is there. */
const ADDED = new Set(['TABLE', 'SEQUENCE', 'TYPE', 'DOMAIN', 'SCHEMA', 'INDEX', 'INDEX ATTACH', 'COMMENT']);
/** Kinds that bind the rows of a table, so that only a new one brings them. */
const OF_NEW_TABLE = new Set(['CONSTRAINT', 'FK CONSTRAINT', 'CHECK CONSTRAINT', 'DEFAULT', 'SEQUENCE']);

type IsNew = (kind: string, of: Pick<SchemaEntry, 'schema' | 'tag'>) => boolean;

function newObjects(pairs: readonly EntryPair[]): IsNew {
  const keyOf = (kind: string, { schema, tag }: Pick<SchemaEntry, 'schema' | 'tag'>) =>
    JSON.stringify([kind, schema, tag]);
  const found = new Set(
    pairs.flatMap(({ before, after }) => (before === null && after ? [keyOf(after.kind, after)] : [])),
  );
  return (kind, of) => found.has(keyOf(kind, of));
}

/** Returns whether a change only adds something. The facts of the table decide about a column. */
function isAddition({ before, after }: EntryPair, { alterations }: SchemaPlan, isNew: IsNew): boolean {
  if (!after) return false;
  if (before) {
    if (after.kind === 'COMMENT') return true;
    const altered = after.kind === 'TABLE' ? alterations.get(after) : undefined;
    return (
      altered !== undefined &&
      altered.first.length + altered.details.length === 0 &&
      altered.parts.every(({ kind, change }) => kind === 'column' && change === 'added')
    );
  }
  if (after.kind === 'TABLE ATTACH') return isNew('TABLE', after);
  if (after.kind === 'SEQUENCE OWNED BY') return isNew('SEQUENCE', after);
  if (after.part && OF_NEW_TABLE.has(after.kind)) return isNew('TABLE', after.part);
  return ADDED.has(after.kind) && !isIdentity(after);
}

/** An enum with more values. */
function addsLabels({ before, after }: EntryPair, old: SchemaFacts, present: SchemaFacts): boolean {
  const known = old.types.get(before?.oid ?? 0)?.labels;
  const labels = present.types.get(after?.oid ?? 0)?.labels;
  if (!known || !labels) return false;
  const olds = new Set(known);
  return JSON.stringify(labels.filter((label) => olds.has(label))) === JSON.stringify(known);
}

/** A constraint can be a part of the statement of its table. */
const isModelled = ({ before, after }: EntryPair, modelled: ReadonlySet<SchemaEntry | null>): boolean =>
  !before ||
  !after ||
  [before, after, before.part, after.part].some((entry) => entry !== null && modelled.has(entry));

function nameOfPair({ before, after }: EntryPair): string {
  const entry = after ?? before;
  return entry ? `${kindOf(entry)} ${identityOf(entry)}` : '';
}
