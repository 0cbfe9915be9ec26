import type { ArchiveEntry } from '../../dump/archive.ts';

/**
 * Entries of two dumps as pairs. Kind, schema and tag are fields of an entry and never read from its text, in which the
 * body of a function could forge them. Two objects can have one tag, so pairs are made from a multiset.
 */

export interface SchemaEntry extends Omit<ArchiveEntry, 'dependencies' | 'definition'> {
  definition: string;
  dependencies: readonly number[];
  /** The name of the object alone, of an entry whose tag begins with that of its table. */
  name: string;
  /** The relation that the object is a part of. */
  part: SchemaEntry | null;
}

/** Rights and marks that the platform sets: those of the database itself, and of PostgreSQL's own functions. */
const isOfPlatform = ({ kind, schema, tag }: Pick<ArchiveEntry, 'kind' | 'schema' | 'tag'>): boolean =>
  ['ACL', 'COMMENT', 'SECURITY LABEL'].includes(kind) &&
  (schema === 'pg_catalog' || (schema === null && tag.startsWith('DATABASE ')));

const RELATIONS = new Set(['TABLE', 'VIEW', 'MATERIALIZED VIEW', 'FOREIGN TABLE']);
/** Kinds whose tag begins with that of their relation. */
const WITH_RELATION = new Set([
  'DEFAULT',
  'CONSTRAINT',
  'FK CONSTRAINT',
  'CHECK CONSTRAINT',
  'TRIGGER',
  'RULE',
  'POLICY',
]);
/** Kinds that are a part of the first object that they depend on. */
const OF_OBJECT = new Set(['COMMENT', 'ACL', 'SECURITY LABEL', 'SEQUENCE OWNED BY', 'ROW SECURITY']);

const RETURN_RULE = '_RETURN';

/** The entries of a dump with their relations; a view that was made as a dummy first has its definition. */
export function schemaEntries(entries: readonly ArchiveEntry[]): SchemaEntry[] {
  const byId = new Map<number, SchemaEntry>();
  const found = new Set<SchemaEntry>();
  for (const entry of entries) {
    if (isOfPlatform(entry)) continue;
    const part = relationOf(entry, byId);
    if (entry.kind === 'RULE' && part?.kind === 'VIEW' && entry.tag === `${part.tag} ${RETURN_RULE}`) {
      part.definition = entry.definition.replace('CREATE OR REPLACE VIEW', 'CREATE VIEW');
      part.dependencies = [...part.dependencies, ...entry.dependencies.filter((id) => id !== part.id)];
      byId.set(entry.id, part);
      // In its place, where everything is there that it needs.
      found.delete(part);
      found.add(part);
      continue;
    }
    const name = part && WITH_RELATION.has(entry.kind) ? entry.tag.slice(part.tag.length + 1) : entry.tag;
    const made: SchemaEntry = { ...entry, name, part };
    byId.set(entry.id, made);
    found.add(made);
  }
  // A dependency on the rule of a dummy view is one on the view.
  for (const entry of found)
    entry.dependencies = [...new Set(entry.dependencies.map((id) => byId.get(id)?.id ?? id))];
  return [...found];
}

/** The sequence of an identity column, which is made with the column. */
export const isIdentity = ({ kind, definition }: Pick<SchemaEntry, 'kind' | 'definition'>): boolean =>
  kind === 'SEQUENCE' && definition.startsWith('ALTER TABLE ');

function relationOf(entry: ArchiveEntry, byId: ReadonlyMap<number, SchemaEntry>): SchemaEntry | null {
  const needed = entry.dependencies.flatMap((id) => byId.get(id) ?? []);
  if (WITH_RELATION.has(entry.kind))
    return (
      needed.find(
        (other) =>
          RELATIONS.has(other.kind) && other.schema === entry.schema && entry.tag.startsWith(`${other.tag} `),
      ) ?? null
    );
  if (entry.kind === 'ROW SECURITY')
    return (
      needed.find(
        ({ kind, tag, schema }) => kind === 'TABLE' && tag === entry.tag && schema === entry.schema,
      ) ?? null
    );
  if (entry.kind === 'INDEX' || isIdentity(entry))
    return needed.find(({ kind, schema }) => RELATIONS.has(kind) && schema === entry.schema) ?? null;
  return OF_OBJECT.has(entry.kind) ? (needed[0] ?? null) : null;
}

/** One object on both sides, or on one of them. */
export interface EntryPair {
  before: SchemaEntry | null;
  after: SchemaEntry | null;
}

const keyOf = ({ kind, schema, tag }: SchemaEntry) => JSON.stringify([kind, schema, tag]);
const byDefinition = (a: SchemaEntry, b: SchemaEntry) =>
  a.definition < b.definition ? -1 : a.definition > b.definition ? 1 : 0;

/** All objects of both sides. Of those with one key, equal definitions are paired first. */
export function pairEntries(before: readonly SchemaEntry[], after: readonly SchemaEntry[]): EntryPair[] {
  const olds = Map.groupBy(before, keyOf);
  const news = Map.groupBy(after, keyOf);
  return [...new Set([...olds.keys(), ...news.keys()])].flatMap((key) =>
    pairOfKey(olds.get(key) ?? [], news.get(key) ?? []),
  );
}

function pairOfKey(olds: readonly SchemaEntry[], news: readonly SchemaEntry[]): EntryPair[] {
  if (olds.length <= 1 && news.length <= 1) return [{ before: olds[0] ?? null, after: news[0] ?? null }];
  const pairs: EntryPair[] = [];
  const left = new Set(news);
  const unpaired: SchemaEntry[] = [];
  const byText = Map.groupBy(news, textOf);
  for (const old of olds) {
    const twin = byText.get(textOf(old))?.pop();
    if (!twin) unpaired.push(old);
    else {
      left.delete(twin);
      pairs.push({ before: old, after: twin });
    }
  }
  const rest = [...left].sort(byDefinition);
  for (const [at, old] of unpaired.sort(byDefinition).entries())
    pairs.push({ before: old, after: rest[at] ?? null });
  for (const added of rest.slice(unpaired.length)) pairs.push({ before: null, after: added });
  return pairs;
}

/** What two entries of one key can differ in. */
const textOf = ({ definition, accessMethod }: SchemaEntry) => JSON.stringify([definition, accessMethod]);

/** Pairs that differ, and the tables of identity columns that differ. */
export function differentPairs(pairs: readonly EntryPair[]): EntryPair[] {
  const different = pairs.filter((pair) => !isEqual(pair));
  const owners = new Set(
    different.flatMap(({ before, after }) =>
      [before, after].flatMap((entry) => (entry && isIdentity(entry) ? (entry.part ?? []) : [])),
    ),
  );
  return pairs.filter(
    (pair) => !isEqual(pair) || [pair.before, pair.after].some((entry) => entry && owners.has(entry)),
  );
}

export const isEqual = ({ before, after }: EntryPair) =>
  before !== null &&
  after !== null &&
  before.definition === after.definition &&
  before.accessMethod === after.accessMethod;
