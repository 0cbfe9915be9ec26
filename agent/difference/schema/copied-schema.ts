import { buildFactBase, type Fact, type FactBase, type StableId } from '@supabase/pg-delta/core';
import { type Action, plan } from '@supabase/pg-delta/plan';

/** Tables whose rows are copied, by schema and name; null: all of the source. */
export type CopiedTables = [schema: string, name: string][] | null;

/** What belongs to a server or to its roles, which are others here. Nobody misses it in a copy. */
const OF_SERVER = new Set([
  ...['role', 'membership', 'acl', 'defaultPrivilege', 'userMapping', 'securityLabel'],
  ...['publication', 'publicationRel', 'publicationSchema', 'subscription'],
]);
/** What an owner of a branch cannot make. */
const NOT_ALLOWED = new Set(['eventTrigger', 'fdw', 'server', 'foreignTable']);

const keyOf = (id: StableId) => JSON.stringify(id);
const targetOf = (id: StableId): StableId => ('target' in id ? targetOf(id.target) : id);
const isOfServer = (id: StableId): boolean =>
  OF_SERVER.has(id.kind) || ('target' in id && isOfServer(id.target));

const rolesOf = (side: FactBase) => side.facts().flatMap(({ id }) => (id.kind === 'role' ? [id.name] : []));

const tableIdOf = (schema: string, name: string): StableId => ({ kind: 'table', schema, name });

/** The tables that are wanted, with those that they are partitions of, or inherit from. */
function withAncestors(side: FactBase, tables: NonNullable<CopiedTables>): Set<string> {
  const wanted = new Set<string>();
  const add = (id: StableId) => {
    if (wanted.has(keyOf(id))) return;
    wanted.add(keyOf(id));
    for (const { to, kind } of side.outgoingEdges(id)) if (kind === 'depends' && to.kind === 'table') add(to);
  };
  for (const [schema, name] of tables) add(tableIdOf(schema, name));
  return wanted;
}

/** What depends on what; a sequence also on the table of its column. */
function* dependenciesOf(side: FactBase): Generator<{ from: StableId; to: StableId }> {
  for (const edge of side.edges) if (edge.kind === 'depends') yield edge;
  for (const { id, payload } of side.facts()) {
    const owner = payload.ownedBy as { schema: string; table: string } | null | undefined;
    if (id.kind === 'sequence' && owner) yield { from: id, to: tableIdOf(owner.schema, owner.table) };
  }
}

/** A policy for a role has nobody to apply to: the role is another server's. */
const isForRole = ({ id, payload }: Fact): boolean =>
  id.kind === 'policy' && (payload.roles as string[]).some((role) => role !== 'PUBLIC');

/** What cannot be made, or is not wanted, with everything that depends on it. */
function withoutDependents(side: FactBase, isRoot: (fact: Fact) => boolean): Set<string> {
  const removed = new Set<string>();
  const dependents = Map.groupBy([...dependenciesOf(side)], ({ to }) => keyOf(to));
  const waiting = side
    .facts()
    .filter(isRoot)
    .map(({ id }) => id);
  for (let id = waiting.pop(); id; id = waiting.pop()) {
    if (removed.has(keyOf(id))) continue;
    removed.add(keyOf(id));
    waiting.push(...side.childrenOf(id).map((child) => child.id));
    waiting.push(...(dependents.get(keyOf(id)) ?? []).map(({ from }) => from));
  }
  return removed;
}

/** What of the source is made here. */
function wantedOf(side: FactBase, tables: CopiedTables, sameRoles: boolean): FactBase {
  const chosen = tables && withAncestors(side, tables);
  const isUnchosen = ({ id }: Fact) => chosen !== null && id.kind === 'table' && !chosen.has(keyOf(id));
  const removed = withoutDependents(
    side,
    (fact) => isUnchosen(fact) || NOT_ALLOWED.has(fact.id.kind) || (!sameRoles && isForRole(fact)),
  );
  const isMade = (id: StableId) =>
    !isOfServer(id) && !removed.has(keyOf(id)) && !removed.has(keyOf(targetOf(id)));
  const facts = side.facts().filter(({ id }) => isMade(id));
  const edges = side.edges.filter(({ kind, from, to }) => kind !== 'owner' && isMade(from) && isMade(to));
  return buildFactBase(facts, edges, side.source);
}

/** A column of a type is added when the type is made, which could be after the next column of its table. */
function inOrderOfColumns(actions: readonly Action[], source: FactBase): Action[] {
  const makers = new Map<string, number>();
  for (const [at, { produces }] of actions.entries()) for (const id of produces) makers.set(keyOf(id), at);
  const before = actions.map(({ consumes }, at) => {
    const needed = consumes.flatMap((id) => makers.get(keyOf(id)) ?? []);
    return new Set(needed.filter((other) => other !== at));
  });
  for (const table of source.facts().filter(({ id }) => id.kind === 'table')) {
    const columns = source
      .childrenOf(table.id)
      .filter(({ id }) => id.kind === 'column')
      .toSorted((a, b) => Number(a.payload._position) - Number(b.payload._position))
      .flatMap(({ id }) => makers.get(keyOf(id)) ?? []);
    for (const [at, column] of columns.entries()) {
      const previous = columns[at - 1];
      if (previous !== undefined && previous !== column) before[column]?.add(previous);
    }
  }
  return inTopologicalOrder(before)?.flatMap((at) => actions[at] ?? []) ?? [...actions];
}

/**
 * The numbers from 0 on in their order, but those that need a later one right after the last that they need:
 * nothing comes earlier than before, because the plan knows more than what an action says it consumes.
 * @returns null for a circle: a type of an earlier column is that of a table which needs a later one
 */
function inTopologicalOrder(before: readonly ReadonlySet<number>[]): number[] | null {
  const left = before.map(({ size }) => size);
  const after = before.map((): number[] => []);
  for (const [at, needed] of before.entries()) for (const other of needed) after[other]?.push(at);
  const sorted: number[] = [];
  for (const at of before.keys()) {
    const ready = left[at] === 0 ? [at] : [];
    for (let next = ready.shift(); next !== undefined; next = ready.shift()) {
      sorted.push(next);
      for (const other of after[next] ?? []) {
        left[other] = (left[other] ?? 0) - 1;
        if (left[other] === 0 && other < at) ready.push(other);
      }
    }
  }
  return sorted.length === before.length ? sorted : null;
}

/** A statement that leads from a copy to the present schema of its source. */
export interface SourceChange {
  statement: string;
  /** It only adds something that no row of the copy is without: it can be made here by itself. */
  isAddition: boolean;
  /** It converts the values of a column, which `USING` may have done otherwise at the source. */
  isConversion: boolean;
  /** The table of a column that only holds more than before, by schema and name. `USING` may still have computed others. */
  widened: [schema: string, name: string] | null;
  /** The table that it makes, by schema and name. */
  newTable: [schema: string, name: string] | null;
}

const INTEGERS = ['smallint', 'integer', 'bigint'];

/** Types whose values stay the same in a larger type of their family. */
const SIZES: [pattern: RegExp, sizeOf: (...parts: string[]) => [family: string, size: number]][] = [
  [/^(smallint|integer|bigint)$/, (name = '') => ['integer', INTEGERS.indexOf(name)]],
  [/^(?:text|character varying(?:\((\d+)\))?)$/, (length = 'Infinity') => ['text', Number(length)]],
  [/^numeric\((\d+),(-?\d+)\)$/, (precision, scale) => [`numeric with scale ${scale}`, Number(precision)]],
];

function sizeOf(type: unknown): [family: string, size: number] | null {
  for (const [pattern, read] of SIZES) {
    const found = pattern.exec(String(type));
    if (found) return read(...found.slice(1));
  }
  return null;
}

/** Whether a column of the first type becomes one of the second only to hold more, so that a plain cast is what was meant. */
export function isWidened(from: unknown, to: unknown): boolean {
  const narrow = sizeOf(from);
  const wide = sizeOf(to);
  // The type of a rebuilt enum has the same name.
  return from !== to && narrow !== null && narrow[0] === wide?.[0] && narrow[1] <= wide[1];
}

/** What a new table may bring with it. */
const ADDED = new Set([
  'table',
  'column',
  'index',
  'sequence',
  'type',
  'schema',
  'constraint',
  'default',
  'comment',
]);

/** A value that is the same for each row. Any other default may have given each row of the source another one. */
const CONSTANT =
  /\bDEFAULT (?:\(?(?:'(?:[^']|'')*'|[-+]?[\d.]+(?:e[-+]?\d+)?|true|false|NULL)\)?(?:::[\w ."(),]+(?:\[\])*)?)(?= NOT NULL|$)/i;
const OTHER_VALUES = /\b(?:DEFAULT|GENERATED|IDENTITY)\b/;

/** Whether the rows that are here get the values that they have at the source. */
const isPlainColumn = (sql: string): boolean => {
  const left = sql.replace(CONSTANT, '');
  return !OTHER_VALUES.test(left) && (left !== sql || !/ NOT NULL\b/.test(sql));
};

const inTable = (id: StableId, tables: ReadonlySet<string>): boolean =>
  'schema' in id && 'table' in id && tables.has(keyOf(tableIdOf(String(id.schema), String(id.table))));

/**
 * How the schema of a copy has to change to be that of the source again.
 * @param tables others are left out, as in the copy
 */
export function sourceChanges(
  copy: FactBase,
  source: FactBase,
  tables: CopiedTables,
  sameRoles: boolean,
): SourceChange[] {
  const wanted = wantedOf(source, tables, sameRoles);
  const present = wantedOf(copy, null, sameRoles);
  const { actions } = plan(present, wanted, {
    scope: 'database',
    compact: false,
    ...(sameRoles && { assumedRoles: rolesOf(source) }),
  });
  const conversionOf = ({
    verb,
    rewriteRisk,
    consumes,
  }: Action): Pick<SourceChange, 'isConversion' | 'widened'> => {
    const column = consumes.find(({ kind }) => kind === 'column');
    const to = column && wanted.get(column)?.payload;
    const from = column && present.get(column)?.payload;
    // A generated column is computed from the others again, here as there.
    if (column?.kind !== 'column' || verb !== 'alter' || !to || to.generatedExpr != null)
      return { isConversion: false, widened: null };
    if (isWidened(from?.type, to.type))
      return { isConversion: false, widened: [column.schema, column.table] };
    return { isConversion: rewriteRisk, widened: null };
  };
  const made = actions.flatMap(({ verb, produces }) => (verb === 'create' ? produces : []));
  const newTables = new Set(made.filter(({ kind }) => kind === 'table').map(keyOf));
  const newIds = new Set(made.map(keyOf));
  const isAddition = ({ sql, verb, produces, consumes, destroys, dataLoss }: Action): boolean => {
    if (verb === 'drop' || destroys.length > 0 || dataLoss !== 'none') return false;
    const ofNewTable = [...produces, ...consumes].some(
      (id) => newTables.has(keyOf(id)) || inTable(id, newTables),
    );
    if (verb === 'alter')
      return ofNewTable || consumes.some((id) => newIds.has(keyOf(id)) && id.kind === 'sequence');
    if (!produces.every((id) => ADDED.has(targetOf(id).kind) || ADDED.has(id.kind))) return false;
    if (ofNewTable) return true;
    // A column comes with its default in one statement.
    const isColumn = produces.some(({ kind }) => kind === 'column');
    const isBound = produces.some(({ kind }) => kind === 'constraint' || (kind === 'default' && !isColumn));
    return !isBound && (!isColumn || isPlainColumn(sql));
  };
  return inOrderOfColumns(actions, wanted).map((action) => {
    const table = action.produces.find(({ kind }) => kind === 'table');
    return {
      statement: action.sql,
      isAddition: isAddition(action),
      ...conversionOf(action),
      newTable: table && table.kind === 'table' ? [table.schema, table.name] : null,
    };
  });
}
