import type { SchemaDifference } from '../../../shared/protocol/difference-operations.ts';
import { identifier } from '../../postgres/connect.ts';
import { type Alteration, alterRelation, alterType, intoRange, type OwnEntries } from './alter-statements.ts';
import {
  differentPairs,
  type EntryPair,
  isEqual,
  isIdentity,
  pairEntries,
  type SchemaEntry,
} from './schema-entries.ts';
import type { RelationFacts, SchemaFacts } from './schema-facts.ts';

export type SchemaChange = SchemaDifference['changes'][number];

export interface Statement {
  text: string;
  /** False of what only a database with rows needs. */
  isProven: boolean;
  /** The entry that it makes, alters or drops. */
  of: SchemaEntry | null;
  act: 'drop' | 'make' | 'alter';
}

export interface Side {
  entries: readonly SchemaEntry[];
  facts: SchemaFacts;
}

export interface SchemaPlan {
  changes: SchemaChange[];
  statements: Statement[];
  /** By the entry of `after`. */
  alterations: ReadonlyMap<SchemaEntry, Alteration>;
}

/** Kinds that are altered by facts of the catalogs. */
const ALTERED_BY_FACTS = new Set(['TABLE', 'FOREIGN TABLE', 'VIEW', 'SEQUENCE', 'TYPE', 'DOMAIN']);
/** Their catalogs say what is granted. */
const RIGHTS = new Set(['ACL', 'DEFAULT ACL']);
/** What rows are in is never dropped unless the branch has dropped it. */
const KEPT = new Set(['TABLE', 'SEQUENCE', 'SCHEMA', 'EXTENSION', 'TYPE', 'DOMAIN', 'FOREIGN TABLE']);
/** Columns may refer to them until they are altered. */
const DROPPED_LAST = new Set([
  'FUNCTION',
  'PROCEDURE',
  'AGGREGATE',
  'TYPE',
  'DOMAIN',
  'SEQUENCE',
  'COLLATION',
  'SCHEMA',
  'EXTENSION',
  'OPERATOR',
  'OPERATOR CLASS',
  'OPERATOR FAMILY',
  'TEXT SEARCH CONFIGURATION',
  'TEXT SEARCH DICTIONARY',
  'LANGUAGE',
  'SHELL TYPE',
]);
/** Kinds that are dropped with an object of which they are no part. */
const GOES_WITH_OTHER = new Set([
  'CHECK CONSTRAINT',
  'INDEX ATTACH',
  'TABLE ATTACH',
  'PUBLICATION TABLE',
  'SEQUENCE',
]);

const nameOf = ({ schema, tag }: Pick<SchemaEntry, 'schema' | 'tag'>) =>
  schema === null ? identifier(tag) : `${identifier(schema)}.${identifier(tag)}`;

/** The statements that lead from one side to the other, and the objects that differ. */
export function planStatements(before: Side, after: Side): SchemaPlan {
  return new Planner(before, after).plan();
}

/** Oids whose facts a plan needs. */
export function factsNeeded(pairs: readonly EntryPair[], side: 'before' | 'after'): number[] {
  return differentPairs(pairs).flatMap((pair) => {
    const entry = pair[side];
    const isNeeded = entry && pair.before && pair.after && entry.oid > 0;
    return isNeeded && ALTERED_BY_FACTS.has(entry.kind) ? [entry.oid] : [];
  });
}

class Planner {
  readonly #before: Side;
  readonly #after: Side;
  readonly #pairs: EntryPair[];
  readonly #pairOf = new Map<SchemaEntry, EntryPair>();
  /** Entries of `before` that are dropped, and made again if they have a twin. */
  readonly #dropped = new Set<SchemaEntry>();
  readonly #users: Map<number, SchemaEntry[]>;
  readonly #alterations = new Map<SchemaEntry, Alteration>();
  readonly #byObject: Map<string, SchemaEntry>;
  readonly #olds: ReadonlyMap<number, SchemaEntry>;
  readonly #news: ReadonlyMap<number, SchemaEntry>;
  /** Parts of the relations of `after`. */
  readonly #parts: ReadonlyMap<SchemaEntry | null, SchemaEntry[]>;

  constructor(before: Side, after: Side) {
    this.#before = before;
    this.#after = after;
    this.#pairs = pairEntries(before.entries, after.entries);
    for (const pair of this.#pairs)
      for (const entry of [pair.before, pair.after]) if (entry) this.#pairOf.set(entry, pair);
    this.#users = new Map();
    for (const entry of before.entries)
      for (const id of entry.dependencies) {
        const users = this.#users.get(id);
        if (users) users.push(entry);
        else this.#users.set(id, [entry]);
      }
    const byId = (entries: readonly SchemaEntry[]) => new Map(entries.map((entry) => [entry.id, entry]));
    this.#olds = byId(before.entries);
    this.#news = byId(after.entries);
    this.#parts = Map.groupBy(after.entries, ({ part }) => part);
    this.#byObject = new Map(
      before.entries.filter(({ oid }) => oid > 0).map((entry) => [`${entry.catalog} ${entry.oid}`, entry]),
    );
  }

  plan(): SchemaPlan {
    const different = differentPairs(this.#pairs);
    for (const { before, after } of different) if (before && after) this.#alter(before, after);
    for (const { before, after } of different)
      if (before && (!after || !this.#alterations.has(after))) this.#drop(before, after === null);
    const first: Statement[] = [];
    const last: Statement[] = [];
    for (const entry of this.#before.entries.toReversed())
      if (this.#dropped.has(entry)) this.#dropStatements(entry, first, last);
    const detached = [...this.#alterations].flatMap(([entry, { first: texts }]) =>
      texts.map((text): Statement => ({ text, isProven: true, of: entry, act: 'alter' })),
    );
    const made = this.#after.entries.flatMap((entry) => this.#makeStatements(entry));
    const isTable = ({ of }: Statement) => of?.kind === 'TABLE';
    return {
      changes: different.flatMap((pair) => this.#changesOf(pair)),
      // A table is not dropped while another one inherits from it.
      statements: [
        ...first.filter((one) => !isTable(one)),
        ...detached,
        ...first.filter(isTable),
        ...made,
        ...last,
      ],
      alterations: this.#alterations,
    };
  }

  /** Stores how the entry is altered, unless it has to be made again. */
  #alter(before: SchemaEntry, after: SchemaEntry): void {
    const plain = (next: string[], more: Partial<Alteration> = {}) =>
      this.#alterations.set(after, { first: [], next, parts: [], details: [], columns: [], ...more });
    const { facts: old } = this.#before;
    const { facts: present } = this.#after;
    const from = old.relations.get(before.oid);
    const to = present.relations.get(after.oid);
    if (RIGHTS.has(after.kind)) return void plain([]);
    // Settings that follow the statement that makes it: clustering, a target of statistics, a disabled trigger.
    if (after.kind !== 'TABLE' && after.definition.startsWith(before.definition))
      return void plain([after.definition.slice(before.definition.length).replace(/^;?\s+/, '')]);
    switch (after.kind) {
      case 'TABLE':
      case 'FOREIGN TABLE': {
        if (!from || !to || from.kind !== to.kind) return;
        const altered = alterRelation(nameOf(after), from, to, this.#ownEntries(after));
        this.#alterations.set(after, altered);
        for (const user of old.users)
          if (user.table === before.oid && altered.columns.includes(user.column)) {
            const entry = this.#byObject.get(`${user.catalog} ${user.oid}`);
            if (entry) this.#drop(entry, false);
          }
        return;
      }
      case 'VIEW': {
        const olds = from?.columns ?? [];
        const news = to?.columns ?? [];
        const isLonger = olds.every(
          (column, at) => column.name === news[at]?.name && column.type === news[at]?.type,
        );
        if (isLonger && from && to)
          plain([after.definition.replace(/^CREATE VIEW/, 'CREATE OR REPLACE VIEW')]);
        return;
      }
      case 'FUNCTION':
      case 'PROCEDURE': {
        const head = ({ definition }: SchemaEntry) => definition.slice(0, definition.indexOf('\n'));
        if (head(before) === head(after)) plain([after.definition.replace(/^CREATE /, 'CREATE OR REPLACE ')]);
        return;
      }
      case 'TYPE':
      case 'DOMAIN': {
        const a = old.types.get(before.oid);
        const b = present.types.get(after.oid);
        const altered = a && b && alterType(nameOf(after), a, b);
        if (altered) this.#alterations.set(after, altered);
        return;
      }
      case 'SEQUENCE': {
        const a = old.sequences.get(before.oid);
        const b = present.sequences.get(after.oid);
        const options = sequenceOptions(after);
        const persistence =
          from && to && from.persistence !== to.persistence
            ? [`ALTER SEQUENCE ${nameOf(after)} SET ${to.persistence === 'u' ? 'UNLOGGED' : 'LOGGED'}`]
            : [];
        const isApart = a && b && (BigInt(a.max) < BigInt(b.min) || BigInt(a.min) > BigInt(b.max));
        if (a && b && options !== null)
          plain([
            ...intoRange(nameOf(after), a, b),
            `ALTER SEQUENCE ${nameOf(after)} ${options}${isApart ? ' RESTART' : ''}`,
            ...persistence,
          ]);
        return;
      }
      case 'DEFAULT':
      case 'COMMENT':
      case 'ROW SECURITY':
      case 'SEQUENCE OWNED BY':
        plain([after.definition]);
    }
  }

  #ownEntries(table: SchemaEntry): OwnEntries {
    const parts = this.#parts.get(table) ?? [];
    const names = (...kinds: string[]) =>
      new Set(parts.filter(({ kind }) => kinds.includes(kind)).map(({ name }) => name));
    return { defaults: names('DEFAULT'), bounds: names('CHECK CONSTRAINT', 'CONSTRAINT') };
  }

  /** With everything that depends on it; what cannot be made again is left, so the drop will fail in the proof. */
  #drop(first: SchemaEntry, isFirstGone: boolean): void {
    const waiting = [first];
    for (let entry = waiting.pop(); entry; entry = waiting.pop()) {
      const isGone = isFirstGone && entry === first;
      if (this.#dropped.has(entry) || (!isGone && KEPT.has(entry.kind) && !this.#canBeMadeAgain(entry)))
        continue;
      this.#dropped.add(entry);
      const pair = this.#pairOf.get(entry);
      if (pair?.after) this.#alterations.delete(pair.after);
      for (const user of this.#users.get(entry.id) ?? [])
        if (!KEPT.has(user.kind) && this.#pairOf.get(user)?.after !== null) waiting.push(user);
    }
  }

  /** A type that no column has. */
  #canBeMadeAgain(entry: SchemaEntry): boolean {
    return (
      ['TYPE', 'DOMAIN'].includes(entry.kind) &&
      (this.#users.get(entry.id) ?? []).every(({ kind }) => kind !== 'TABLE')
    );
  }

  #dropStatements(entry: SchemaEntry, first: Statement[], last: Statement[]): void {
    const isGone = this.#pairOf.get(entry)?.after === null;
    const owner = this.#owner(entry);
    if (owner && this.#dropped.has(owner)) {
      // A table that refers to another one cannot go after it.
      if (entry.kind !== 'FK CONSTRAINT' || !isGone) return;
    }
    if (this.#isBound(entry)) return;
    const text = this.#dropText(entry);
    if (text === null) return;
    const statement: Statement = { text, isProven: true, of: entry, act: 'drop' };
    const isLast =
      isGone &&
      DROPPED_LAST.has(entry.kind) &&
      !this.#needs(entry).some((other) => this.#dropped.has(other) && !DROPPED_LAST.has(other.kind));
    (isLast ? last : first).push(statement);
    if (entry.part && definesIdentity(entry))
      first.push({ ...statement, text: `ALTER TABLE ONLY ${nameOf(entry.part)} REPLICA IDENTITY DEFAULT` });
  }

  /** A check or NOT NULL that the other side has in its table: altered with that. */
  #isBound({ kind, part, name }: SchemaEntry): boolean {
    const table = part && this.#pairOf.get(part)?.after;
    const facts = table && this.#after.facts.relations.get(table.oid);
    return (
      ['CHECK CONSTRAINT', 'CONSTRAINT'].includes(kind) &&
      Boolean(facts?.bounds?.some((bound) => bound.name === name))
    );
  }

  /** What it goes with when that is dropped. */
  #owner(entry: SchemaEntry): SchemaEntry | null {
    // The key of a partition goes with that of the whole table.
    const whole = entry.kind === 'CONSTRAINT' && this.#needs(entry).find(({ kind }) => kind === 'CONSTRAINT');
    if (whole && this.#dropped.has(whole)) return whole;
    if (entry.part) return entry.part;
    if (!GOES_WITH_OTHER.has(entry.kind)) return null;
    return this.#needs(entry).find((found) => found !== entry && this.#dropped.has(found)) ?? null;
  }

  #dropText(entry: SchemaEntry): string | null {
    const { kind, definition } = entry;
    if (RIGHTS.has(kind)) return null;
    if (kind === 'COMMENT')
      return this.#pairOf.get(entry)?.after ? null : `${beforeLiteral(definition)} IS NULL`;
    if (kind === 'ROW SECURITY') return `ALTER TABLE ${nameOf(entry)} DISABLE ROW LEVEL SECURITY`;
    if (kind === 'SEQUENCE OWNED BY') return `ALTER SEQUENCE ${nameOf(entry)} OWNED BY NONE`;
    if (kind === 'TABLE ATTACH') {
      const parent = this.#needs(entry).find(
        ({ kind: other, tag }) => other === 'TABLE' && tag !== entry.tag,
      );
      return parent ? `ALTER TABLE ${nameOf(parent)} DETACH PARTITION ${nameOf(entry)}` : null;
    }
    // The state of a trigger on a partition.
    if (kind === 'TRIGGER' && entry.drop === null && entry.part)
      return `ALTER TABLE ${nameOf(entry.part)} ENABLE TRIGGER ${identifier(entry.name)}`;
    // The column drops it.
    if (isIdentity(entry)) return null;
    if (kind === 'SEQUENCE') return entry.drop && `DROP SEQUENCE IF EXISTS ${nameOf(entry)}`;
    return entry.drop;
  }

  #makeStatements(entry: SchemaEntry): Statement[] {
    const { before } = this.#pairOf.get(entry) ?? { before: null };
    const make = (texts: readonly string[], act: Statement['act']): Statement[] =>
      texts.filter((text) => text !== '').map((text) => ({ text, isProven: true, of: entry, act }));
    if (before && !this.#dropped.has(before)) return make(this.#alterations.get(entry)?.next ?? [], 'alter');
    if (RIGHTS.has(entry.kind)) return [];
    if (entry.part && ['CHECK CONSTRAINT', 'CONSTRAINT'].includes(entry.kind) && this.#isThere(entry))
      return [];
    const made = make([entry.definition], 'make');
    if (entry.kind !== 'MATERIALIZED VIEW') return made;
    return [
      ...made,
      { text: `REFRESH MATERIALIZED VIEW ${nameOf(entry)}`, isProven: false, of: entry, act: 'make' },
    ];
  }

  /** A constraint that the dump of the other side has within its table. */
  #isThere({ part, name }: SchemaEntry): boolean {
    const pair = part && this.#pairOf.get(part);
    const facts = (side: Side, entry: SchemaEntry | null | undefined): RelationFacts | undefined =>
      side.facts.relations.get(entry?.oid ?? 0);
    const [a, b] = [facts(this.#before, pair?.before), facts(this.#after, pair?.after)].map((found) =>
      found?.bounds?.find((bound) => bound.name === name),
    );
    return a !== undefined && JSON.stringify(a) === JSON.stringify(b);
  }

  #changesOf({ before, after }: EntryPair): SchemaChange[] {
    const entry = after ?? before;
    if (!entry) return [];
    const change = before === null ? 'added' : after === null ? 'dropped' : 'changed';
    const owner = entry.part;
    // What comes and goes with its object is not listed again.
    if (owner && this.#isWhole(owner)) return [];
    if (['INDEX ATTACH', 'TABLE ATTACH', 'PUBLICATION TABLE', 'SEQUENCE OWNED BY'].includes(entry.kind)) {
      if (this.#needs(entry).some((other) => this.#isWhole(other))) return [];
    }
    if (entry.kind === 'SEQUENCE' && this.#tableOfSequence(entry)) return [];
    if (isIdentity(entry) && change !== 'changed') return [];
    if (isEqual({ before, after }) && !(after && this.#alterations.get(after)?.parts.length)) return [];
    const altered = after && this.#alterations.get(after);
    const found = { kind: kindOf(entry), identity: identityOf(entry), change } as const;
    if (!altered || (altered.parts.length === 0 && altered.details.length === 0)) return [found];
    if (altered.parts.length === 0 && altered.details.join() === 'order of columns')
      return [{ ...found, kind: 'column_order' }];
    return [
      ...altered.parts.map(({ name, ...part }) => ({
        ...part,
        identity: `${identityOf(entry)}.${quoted(name)}`,
      })),
      ...(altered.details.length > 0 ? [{ ...found, detail: altered.details.join(', ') }] : []),
    ];
  }

  /** The new or dropped table of a sequence that belongs to one of its columns. */
  #tableOfSequence(entry: SchemaEntry): boolean {
    return this.#needs(entry).some((other) => other.kind === 'TABLE' && this.#isWhole(other));
  }

  #needs(entry: SchemaEntry): SchemaEntry[] {
    const side = this.#news.get(entry.id) === entry ? this.#news : this.#olds;
    return entry.dependencies.flatMap((id) => side.get(id) ?? []);
  }

  #isWhole(entry: SchemaEntry): boolean {
    const pair = this.#pairOf.get(entry);
    return entry.kind !== 'SCHEMA' && pair !== undefined && (pair.before === null || pair.after === null);
  }
}

const PLAIN = /^[a-z_][a-z0-9_$]*$/;
const quoted = (name: string) => (PLAIN.test(name) ? name : identifier(name));

const KINDS: Record<string, string> = {
  ACL: 'grant',
  'DEFAULT ACL': 'default privilege',
  'FK CONSTRAINT': 'constraint',
  'CHECK CONSTRAINT': 'constraint',
  'ROW SECURITY': 'row security',
  'TABLE ATTACH': 'partition',
  'INDEX ATTACH': 'index of a partition',
  'PUBLICATION TABLE': 'published table',
  'PUBLICATION TABLES IN SCHEMA': 'published schema',
};
export const kindOf = ({ kind }: Pick<SchemaEntry, 'kind'>) => KINDS[kind] ?? kind.toLowerCase();

/** `public.book`, `public.book.title`; tags with arguments or with another kind stay as they are. */
export function identityOf({ kind, schema, tag, part, name }: SchemaEntry): string {
  const of = schema === null ? '' : `${quoted(schema)}.`;
  if (part && name !== tag) return `${of}${quoted(part.tag)}.${quoted(name)}`;
  if (kind === 'SCHEMA') return quoted(tag);
  if (['COMMENT', 'ACL', 'SECURITY LABEL'].includes(kind)) {
    const [, word = '', rest = tag] = /^([A-Z ]+?) ((?:[^A-Z ]|[A-Z]+[^A-Z ]).*)$/s.exec(tag) ?? [];
    return `${word.toLowerCase()} ${of}${rest}`.trim();
  }
  return `${of}${/[( ]/.test(tag) ? tag : quoted(tag)}`;
}

/** Of `COMMENT ON … IS '…'`: what is before the literal. A quoted name can have the word in it. */
function beforeLiteral(definition: string): string {
  const match = /^(?:[^"']|"(?:[^"]|"")*")*? IS (?=E?')/.exec(definition);
  return match ? match[0].slice(0, -' IS '.length) : definition;
}

/** Settings of the table that follow the statement of an index. */
const definesIdentity = ({ definition }: SchemaEntry) => / REPLICA IDENTITY USING INDEX /.test(definition);

/** The options of `CREATE SEQUENCE` and of an identity column, which ALTER takes too. */
function sequenceOptions({ definition }: SchemaEntry): string | null {
  const at = definition.indexOf('\n    START WITH ');
  if (at === -1) return null;
  const isTyped = /\n {4}AS (smallint|integer)\n/.exec(definition.slice(0, at + 1));
  const end = definition.search(/\n\);\s*$|;\s*$/);
  const options = definition
    .slice(at, end === -1 ? undefined : end)
    .replaceAll(/\s+/g, ' ')
    .trim();
  const type = definition.startsWith('CREATE ') ? `AS ${isTyped?.[1] ?? 'bigint'} ` : '';
  return `${type}${options}${/ CYCLE/.test(options) ? '' : ' NO CYCLE'}`;
}
