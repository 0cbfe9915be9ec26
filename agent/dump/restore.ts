import { inTransaction, literal, type Session } from '../postgres/connect.ts';
import type { Archive, ArchiveEntry } from './archive.ts';

/** What is made of an archive in an empty database, by a login that is no superuser. */

export interface RestorePlan {
  /** What rows need: types, tables, functions, views. */
  first: ArchiveEntry[];
  /** Keys and indexes of one table each, which wait for the rows and for nothing else, so they can be made concurrently. */
  indexes: ArchiveEntry[][];
  /** What waits for both: foreign keys, triggers, attached indexes. */
  last: ArchiveEntry[];
  /** Policies, which would hide rows from those who compare them. */
  policies: ArchiveEntry[];
  /** Materialized views, in the order in which they can be refreshed. */
  views: ArchiveEntry[];
  /** What cannot be made here, as `kind name`. */
  leftOut: string[];
  /** Objects that depend on a table that was not chosen, or on an object that is left alone. */
  unchosen: string[];
}

export interface Choice {
  /** Tables whose rows are copied, by schema and name; null: all. */
  tables: readonly (readonly [schema: string, name: string])[] | null;
  /** Policies for named roles, whose roles this server does not have, by schema and tag. */
  policies: readonly (readonly [schema: string, tag: string])[];
  /** Objects that are left alone, or depend on such a one, as `catalog oid`. */
  leftAlone?: ReadonlySet<string>;
  /** The schema `public` is the platform's, as in a project with extensions, so its comment stays. */
  isPublicOfPlatform?: boolean;
}

/** What an owner of a branch cannot make. */
const NOT_ALLOWED = new Set([
  ...['EVENT TRIGGER', 'FOREIGN DATA WRAPPER', 'SERVER', 'USER MAPPING', 'FOREIGN TABLE'],
  ...['PROCEDURAL LANGUAGE', 'ACCESS METHOD', 'TRANSFORM'],
]);
const INDEXING = new Set(['INDEX', 'CONSTRAINT']);
const POLICIES = new Set(['ROW SECURITY', 'POLICY']);
const RELATIONS = new Set(['TABLE', 'MATERIALIZED VIEW']);

const keyOf = (schema: string | null, tag: string) => JSON.stringify([schema, tag]);
const keyOfEntry = ({ schema, tag }: ArchiveEntry) => keyOf(schema, tag);

/** As a person reads it: `policy public.visit staff`. */
export const describeEntry = ({ kind, schema, tag }: ArchiveEntry): string =>
  `${kind.toLowerCase()} ${schema === null ? '' : `${schema}.`}${tag}`;

/** Each database has it, or it is the extension's or the platform's. */
const isThere = ({ kind, tag }: ArchiveEntry, { isPublicOfPlatform = false }: Choice) =>
  (kind === 'SCHEMA' && tag === 'public') ||
  (kind === 'COMMENT' &&
    (/^(?:EXTENSION|DATABASE) /.test(tag) || (isPublicOfPlatform && tag === 'SCHEMA public')));

/** Parts of an object, which nobody misses by themselves. */
const isPart = ({ kind }: ArchiveEntry) =>
  /^(?:COMMENT|DEFAULT|SEQUENCE OWNED BY|TABLE ATTACH|INDEX ATTACH|ROW SECURITY)$/.test(kind);

/** The identifiers of entries, with all that needs them. */
function withDependents(entries: readonly ArchiveEntry[], roots: Iterable<number>): Set<number> {
  const dependents = new Map<number, number[]>();
  for (const { id, dependencies } of entries)
    for (const needed of dependencies) {
      const known = dependents.get(needed);
      if (known) known.push(id);
      else dependents.set(needed, [id]);
    }
  const found = new Set<number>();
  const waiting = [...roots];
  for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
    if (found.has(id)) continue;
    found.add(id);
    waiting.push(...(dependents.get(id) ?? []));
  }
  return found;
}

/** Tables that are not wanted: neither chosen, nor a parent of one that is. */
function unchosenTables(
  entries: readonly ArchiveEntry[],
  tables: NonNullable<Choice['tables']>,
): Set<number> {
  const byId = new Map(entries.map((entry) => [entry.id, entry]));
  const tableOf = (id: number) => {
    const entry = byId.get(id);
    return entry?.kind === 'TABLE' ? entry : undefined;
  };
  const wanted = new Set<number>();
  const parents = new Map<number, number[]>();
  for (const { id, kind, dependencies } of entries) {
    const related = dependencies.filter((needed) => tableOf(needed));
    if (kind === 'TABLE') parents.set(id, [...(parents.get(id) ?? []), ...related]);
  }
  // A partition is made by itself, and attached with an entry of its name.
  for (const attached of entries.filter(({ kind }) => kind === 'TABLE ATTACH')) {
    const partition = attached.dependencies.find((id) => {
      const table = tableOf(id);
      return table && keyOfEntry(table) === keyOfEntry(attached);
    });
    if (partition === undefined) continue;
    const others = attached.dependencies.filter((id) => id !== partition && tableOf(id));
    parents.set(partition, [...(parents.get(partition) ?? []), ...others]);
  }
  const chosen = new Set(tables.map(([schema, name]) => keyOf(schema, name)));
  const waiting = entries
    .filter((entry) => entry.kind === 'TABLE' && chosen.has(keyOfEntry(entry)))
    .map(({ id }) => id);
  for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
    if (wanted.has(id)) continue;
    wanted.add(id);
    waiting.push(...(parents.get(id) ?? []));
  }
  return new Set(entries.filter(({ kind, id }) => kind === 'TABLE' && !wanted.has(id)).map(({ id }) => id));
}

/** Sequences of columns that are left out, unless something else takes values from them. */
function unusedSequences(entries: readonly ArchiveEntry[], gone: ReadonlySet<number>): number[] {
  const owned = entries.filter(({ kind, id }) => kind === 'SEQUENCE OWNED BY' && gone.has(id));
  const needed = new Set(
    entries
      .filter(({ id, kind }) => !gone.has(id) && kind !== 'COMMENT')
      .flatMap(({ dependencies }) => dependencies),
  );
  const ofColumns = new Set(owned.map(keyOfEntry));
  return entries
    .filter((entry) => entry.kind === 'SEQUENCE' && ofColumns.has(keyOfEntry(entry)) && !needed.has(entry.id))
    .map(({ id }) => id);
}

/** What is made, in which order, and what is left out. */
export function planRestore(entries: Archive, choice: Choice): RestorePlan {
  const { tables, policies, leftAlone } = choice;
  const ofRoles = new Set(policies.map(([schema, tag]) => keyOf(schema, tag)));
  const notHere = entries
    .filter(
      (entry) => NOT_ALLOWED.has(entry.kind) || (entry.kind === 'POLICY' && ofRoles.has(keyOfEntry(entry))),
    )
    .map(({ id }) => id);
  const roots = tables === null ? new Set<number>() : unchosenTables(entries, tables);
  const alone = entries.filter(({ catalog, oid }) => leftAlone?.has(`${catalog} ${oid}`)).map(({ id }) => id);
  const unchosen = withDependents(entries, [...roots, ...alone]);
  for (const id of unusedSequences(entries, unchosen))
    for (const more of withDependents(entries, [id])) unchosen.add(more);
  const removed = withDependents(entries, notHere);
  const isMade = (entry: ArchiveEntry) =>
    entry.definition !== '' && !isThere(entry, choice) && !unchosen.has(entry.id) && !removed.has(entry.id);
  const made = entries.filter(isMade);
  const plan: RestorePlan = {
    first: [],
    indexes: [],
    last: [],
    policies: [],
    views: [],
    leftOut: entries
      .filter((entry) => removed.has(entry.id) && !unchosen.has(entry.id) && !isPart(entry))
      .map(describeEntry),
    unchosen: entries
      .filter((entry) => unchosen.has(entry.id) && !roots.has(entry.id) && !isPart(entry))
      .filter(({ kind, dependencies }) => !isOfUnchosen(kind, dependencies, roots))
      .map(describeEntry),
  };
  const byId = new Map(made.map((entry) => [entry.id, entry]));
  const ofTables = new Map<number, ArchiveEntry[]>();
  for (const entry of made) {
    if (entry.kind === 'MATERIALIZED VIEW') plan.views.push(entry);
    const needed = entry.dependencies.flatMap((id) => byId.get(id) ?? []);
    // A comment has no section but that of its object.
    const of = needed.find(({ section }) => entry.section === 'none' && section === 'post-data') ?? entry;
    if (of.section !== 'post-data') plan.first.push(entry);
    else if (POLICIES.has(of.kind)) plan.policies.push(entry);
    else {
      const table = needed.find(({ kind }) => RELATIONS.has(kind));
      const waitsForRowsOnly = needed.every(({ section }) => section === 'pre-data');
      if (!INDEXING.has(entry.kind) || !table || !waitsForRowsOnly) plan.last.push(entry);
      else {
        const ofTable = ofTables.get(table.id);
        if (ofTable) ofTable.push(entry);
        else ofTables.set(table.id, [entry]);
      }
    }
  }
  plan.indexes = [...ofTables.values()];
  return plan;
}

/** Indexes, keys, triggers and policies of a table that was not chosen are a part of it. */
const isOfUnchosen = (kind: string, dependencies: readonly number[], roots: ReadonlySet<number>) =>
  /^(?:INDEX|CONSTRAINT|CHECK CONSTRAINT|TRIGGER|POLICY|STATISTICS|RULE|SEQUENCE)$/.test(kind) &&
  (kind !== 'RULE' || dependencies.every((id) => roots.has(id)));

/** An entry that PostgreSQL refuses here. */
export interface RefusedEntry {
  entry: ArchiveEntry;
  error: unknown;
}

/** Entries of one transaction: each has locks until its end, and one with all would fill the lock table. */
const PER_TRANSACTION = 200;

interface Restoring {
  /** The setting `search_path` of what the statements run; everything that they name has its schema. */
  searchPath: string;
  /** Goes on after a refused entry, without what depends on it. False: the first one ends it. */
  goesOn?: boolean;
}

/**
 * Makes entries in their order. A statement that ends its transaction is refused, as one of a lying source.
 * @returns the entries that PostgreSQL has refused
 * @throws what ends the session
 */
export async function restoreEntries(
  session: Session,
  entries: readonly ArchiveEntry[],
  { searchPath, goesOn = false }: Restoring,
): Promise<RefusedEntry[]> {
  const refused: RefusedEntry[] = [];
  const gone = new Set<number>();
  const isGone = ({ dependencies }: ArchiveEntry) => dependencies.some((id) => gone.has(id));
  for (let at = 0; at < entries.length; at += PER_TRANSACTION) {
    const some = entries.slice(at, at + PER_TRANSACTION);
    const restoring = inTransaction(session, async () => {
      const path = literal(searchPath);
      await session.query(`SELECT pg_catalog.set_config('search_path', ${path}, true); SAVEPOINT entries`);
      for (const entry of some) {
        if (isGone(entry)) {
          gone.add(entry.id);
          continue;
        }
        if (goesOn) await session.query('SAVEPOINT entry');
        try {
          await session.query(entry.definition);
        } catch (error) {
          refused.push({ entry, error });
          gone.add(entry.id);
          if (!goesOn) throw error;
          await session.query('ROLLBACK TO SAVEPOINT entry');
        }
        if (goesOn) await session.query('RELEASE SAVEPOINT entry');
      }
      await session.query('RELEASE SAVEPOINT entries');
    });
    await restoring.catch((error: unknown) => {
      if (goesOn || refused.length === 0) throw error;
    });
    if (refused.length > 0 && !goesOn) break;
  }
  return refused;
}
