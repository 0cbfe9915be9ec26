import type { MaskingRule } from '../../shared/masking.ts';
import { columnOf, tableOf } from '../../shared/masking-names.ts';
import { AS_VALUES, identifier, type Session } from '../postgres/connect.ts';
import { type MaskedColumn, misfit, type ValueKind } from './functions.ts';
import { looksPersonal, VALUE_FORMS } from './likely-personal.ts';

/** Why a policy does not cover a database. */
export interface MaskingProblem {
  table: string;
  /** Null: the whole table. */
  column: string | null;
  reason: string;
}

interface Column extends MaskedColumn {
  notNull: boolean;
  generated: boolean;
  alwaysIdentity: boolean;
}

export interface MaskedTable {
  oid: string;
  schema: string;
  name: string;
  /** Partitioned tables have no rows of their own. */
  isPartitioned: boolean;
  /** Tables that it inherits from, or is a partition of. */
  parents: string[];
  columns: Column[];
  /** By the name of the column. */
  rules: Map<string, MaskingRule>;
}

export const nameOf = ({ schema, name }: Pick<MaskedTable, 'schema' | 'name'>): string =>
  `${identifier(schema)}.${identifier(name)}`;

export const shownName = ({ schema, name }: Pick<MaskedTable, 'schema' | 'name'>) => `${schema}.${name}`;

const KINDS: Record<string, ValueKind> = {
  int2: 'integer',
  int4: 'integer',
  int8: 'integer',
  numeric: 'numeric',
  float4: 'float',
  float8: 'float',
  date: 'date',
  timestamp: 'timestamp',
  timestamptz: 'timestamp',
  uuid: 'uuid',
  bytea: 'bytea',
  json: 'json',
  jsonb: 'json',
};

interface FoundColumn {
  name: string;
  type: string;
  category: string;
  base: string;
  modifier: number;
  is_array: boolean;
  not_null: boolean;
  generated: boolean;
  always_identity: boolean;
}

const USER_SCHEMAS = `nspname !~ '^pg_' AND nspname <> 'information_schema'`;

/** Every table with rows. An extension's own tables are part of it. */
async function readTables(session: Session): Promise<MaskedTable[]> {
  const { rows } = await session.query<{
    oid: string;
    schema: string;
    name: string;
    kind: string;
    parents: string[];
    columns: FoundColumn[];
  }>({
    types: AS_VALUES,
    text: `SELECT class.oid::text, nspname::text AS schema, relname::text AS name, relkind AS kind,
       ARRAY (SELECT inhparent::text FROM pg_inherits WHERE inhrelid = class.oid) AS parents,
       ARRAY (
         SELECT json_build_object(
           'name', attname, 'type', format_type(atttypid, atttypmod), 'category', based.typcategory,
           'base', based.typname, 'is_array', whole.typcategory = 'A',
           'modifier', greatest(atttypmod, declared.typtypmod, CASE WHEN whole.typcategory = 'A' THEN -1 ELSE whole.typtypmod END),
           'not_null', attnotnull, 'generated', attgenerated <> '', 'always_identity', attidentity = 'a')
         FROM pg_attribute
         JOIN pg_type AS declared ON declared.oid = atttypid
         JOIN pg_type AS whole ON whole.oid = pg_basetype(atttypid)
         JOIN pg_type AS based ON based.oid = CASE WHEN whole.typcategory = 'A' THEN pg_basetype(whole.typelem) ELSE whole.oid END
         WHERE attrelid = class.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
       ) AS columns
     FROM pg_class AS class JOIN pg_namespace ON pg_namespace.oid = relnamespace
     WHERE relkind IN ('r', 'p') AND ${USER_SCHEMAS} ORDER BY class.oid`,
  });
  return rows.map(({ kind, columns, ...table }) => ({
    ...table,
    isPartitioned: kind === 'p',
    columns: columns.map(toColumn),
    rules: new Map(),
  }));
}

function toColumn({ name, type, category, base, modifier, ...found }: FoundColumn): Column {
  const isText = category === 'S';
  const kind = isText ? 'text' : (KINDS[base] ?? 'other');
  const scale = (modifier - 4) & 0xffff;
  const precision = (modifier - 4) >> 16;
  const largest =
    base === 'numeric' && modifier >= 4 && scale <= precision
      ? `${'9'.repeat(precision - scale) || '0'}${scale > 0 ? `.${'9'.repeat(scale)}` : ''}`
      : null;
  return {
    name,
    type,
    kind,
    base,
    isArray: found.is_array,
    maxLength: isText && modifier >= 4 ? modifier - 4 : base === 'name' ? 63 : null,
    largest,
    notNull: found.not_null,
    generated: found.generated,
    alwaysIdentity: found.always_identity,
  };
}

interface ForeignKey {
  name: string;
  /** The referencing table and columns, and those that they refer to. */
  from: string;
  from_columns: string[];
  to: string;
  to_columns: string[];
}

async function readForeignKeys(session: Session): Promise<ForeignKey[]> {
  const named = (relation: string, key: string) =>
    `ARRAY (SELECT attname::text FROM unnest(${key}) WITH ORDINALITY AS keys (key, n)
       JOIN pg_attribute ON attrelid = ${relation} AND attnum = key ORDER BY n)`;
  const { rows } = await session.query<ForeignKey>({
    types: AS_VALUES,
    text: `SELECT conname::text AS name, conrelid::text AS "from", ${named('conrelid', 'conkey')} AS from_columns,
       confrelid::text AS "to", ${named('confrelid', 'confkey')} AS to_columns
     FROM pg_constraint WHERE contype = 'f' AND conparentid = 0`,
  });
  return rows;
}

const sameRule = (one: MaskingRule, other: MaskingRule) =>
  one.with === other.with &&
  JSON.stringify('args' in one ? one.args : null) === JSON.stringify('args' in other ? other.args : null);

/** The result depends on nothing but the value, so that both sides of a foreign key stay equal. */
const dependsOnRow = (rule: MaskingRule) =>
  rule.with === 'expression' || (rule.with === 'date_shift' && rule.args?.per !== undefined);

/** Gives both sides of each foreign key the same rule, over any number of tables. */
function spread(foreignKeys: readonly ForeignKey[], byOid: Map<string, MaskedTable>): MaskingProblem[] {
  const problems: MaskingProblem[] = [];
  for (let isDone = false; !isDone; ) {
    isDone = true;
    for (const key of foreignKeys) {
      const from = byOid.get(key.from);
      const to = byOid.get(key.to);
      if (!from || !to) continue;
      key.from_columns.forEach((column, n) => {
        const other = key.to_columns[n] ?? '';
        const one = from.rules.get(column);
        const two = to.rules.get(other);
        const rule = one ?? two;
        if (!rule || (one && two)) return;
        const [table, name] = one ? [to, other] : [from, column];
        if (dependsOnRow(rule)) {
          const given = one
            ? columnOf({ table: shownName(from), column })
            : columnOf({ table: shownName(to), column: other });
          const problem = {
            table: shownName(table),
            column: name,
            reason: `it has the same values as ${given} by the foreign key ${key.name}, whose rule depends on the row: give it a rule of its own`,
          };
          if (!problems.some((known) => known.table === problem.table && known.column === problem.column))
            problems.push(problem);
          return;
        }
        table.rules.set(name, { ...rule, table: shownName(table), column: name });
        isDone = false;
      });
    }
  }
  for (const key of foreignKeys) {
    const from = byOid.get(key.from);
    const to = byOid.get(key.to);
    key.from_columns.forEach((column, n) => {
      const one = from?.rules.get(column);
      const two = to?.rules.get(key.to_columns[n] ?? '');
      if (from && to && one && two && !sameRule(one, two))
        problems.push({
          table: shownName(from),
          column,
          reason: `its rule differs from that of ${shownName(to)}.${key.to_columns[n]}, to which the foreign key ${key.name} refers`,
        });
    });
  }
  return problems;
}

/** The rule of the column here or in a table that it inherits from. */
function ruleFor(
  table: MaskedTable,
  column: string,
  byOid: Map<string, MaskedTable>,
): MaskingRule | undefined {
  const own = table.rules.get(column);
  if (own) return own;
  for (const parent of table.parents) {
    const found = byOid.get(parent);
    const rule = found && ruleFor(found, column, byOid);
    if (rule) return rule;
  }
  return undefined;
}

/** The rules of all columns of a table, also those of tables that it inherits from. */
export function rulesIn({ tables }: Pick<MaskingPlan, 'tables'>, table: MaskedTable) {
  const byOid = new Map(tables.map((one) => [one.oid, one]));
  return table.columns.map((column) => ({ column, rule: ruleFor(table, column.name, byOid) ?? null }));
}

const rejected = (
  table: MaskedTable,
  column: Column,
  rule: MaskingRule,
  byOid: Map<string, MaskedTable>,
): string | null => {
  if (column.generated) return 'it is generated: give the columns that it is made of a rule';
  if (rule.with === 'null' && column.notNull) return 'it is NOT NULL';
  if (rule.with === 'date_shift' && rule.args?.per !== undefined) {
    const { per } = rule.args;
    if (!table.columns.some(({ name }) => name === per)) return `its table has no column ${per}`;
  }
  if (
    table.parents.some((oid) => {
      const parent = byOid.get(oid);
      return parent && ruleFor(parent, column.name, byOid);
    })
  )
    return 'a table that it inherits from has a rule for it already';
  return misfit(rule, column);
};

/** How a database is read for what looks personal. */
interface Reading {
  /** Also samples of the values; otherwise names and types alone. */
  sample: boolean;
  /** Also if the policy keeps the columns that it does not list. */
  suggest: boolean;
}

const VALUES_SAMPLED = 200;
/** Of one column; fewer may be by chance. */
const VALUES_NEEDED = 2;

/** Columns of texts whose values look personal, in a sample of the table. */
async function readLikelyValues(session: Session, table: MaskedTable, columns: readonly Column[]) {
  if (columns.length === 0 || table.isPartitioned) return [];
  const counts = columns.flatMap(({ name }) =>
    VALUE_FORMS.map(
      ([pattern]) =>
        `count(*) FILTER (WHERE left(${identifier(name)}::text, 200) COLLATE "C" ~ '${pattern}')`,
    ),
  );
  const names = columns.map(({ name }) => identifier(name)).join(', ');
  const { rows } = await session.query<(string | null)[]>({
    text: `SELECT ${counts.join(', ')} FROM (SELECT ${names} FROM ONLY ${nameOf(table)} LIMIT ${VALUES_SAMPLED}) AS sample`,
    rowMode: 'array',
  });
  const found = rows[0] ?? [];
  return columns.flatMap(({ name }, n) => {
    const form = VALUE_FORMS.find((_, of) => Number(found[n * VALUE_FORMS.length + of]) >= VALUES_NEEDED);
    return form ? [{ table: shownName(table), column: name, reason: form[1] }] : [];
  });
}

/** Columns without a rule that look personal, by their names, types and values. */
async function readUncovered(
  session: Session,
  { tables, byOid }: Database,
  { sample }: Reading,
): Promise<MaskingProblem[]> {
  const uncovered: MaskingProblem[] = [];
  for (const table of tables) {
    const open = table.columns.filter(({ name, generated }) => !generated && !ruleFor(table, name, byOid));
    const named = open.flatMap((column) => {
      const reason = looksPersonal(column, table.columns);
      return reason === null ? [] : [{ table: shownName(table), column: column.name, reason }];
    });
    // The partition of a table has its columns.
    uncovered.push(
      ...named.filter(
        ({ column }) =>
          !table.parents.some((oid) => byOid.get(oid)?.columns.some(({ name }) => name === column)),
      ),
    );
    if (!sample) continue;
    const texts = open.filter(
      ({ name, kind }) => kind === 'text' && !named.some(({ column }) => column === name),
    );
    uncovered.push(...(await readLikelyValues(session, table, texts)));
  }
  return uncovered;
}

interface Database {
  tables: MaskedTable[];
  byOid: Map<string, MaskedTable>;
}

export interface MaskingPlan {
  /** With the rules that foreign keys spread; those of tables that they inherit from are there only. */
  tables: MaskedTable[];
  problems: MaskingProblem[];
  /** Columns without a rule that look personal. */
  uncovered: MaskingProblem[];
}

/**
 * Compares a policy with a database.
 * @param session of a login with the rights of the owner, which sees every row
 */
export async function planMasking(
  session: Session,
  rules: readonly MaskingRule[],
  unlisted: 'keep' | 'refuse_likely_personal',
  reading: Reading = { sample: true, suggest: false },
): Promise<MaskingPlan> {
  const tables = await readTables(session);
  const byOid = new Map(tables.map((table) => [table.oid, table]));
  const problems: MaskingProblem[] = [];
  for (const rule of rules) {
    const wanted = tableOf(rule);
    const table = tables.find(({ schema, name }) => schema === wanted.schema && name === wanted.name);
    if (!table) {
      const known = problems.some(
        (problem) => problem.column === null && problem.table === shownName(wanted),
      );
      if (!known) problems.push({ table: shownName(wanted), column: null, reason: 'there is no such table' });
    } else if (!table.columns.some(({ name }) => name === rule.column))
      problems.push({ table: shownName(table), column: rule.column, reason: 'there is no such column' });
    else table.rules.set(rule.column, rule);
  }
  problems.push(...spread(await readForeignKeys(session), byOid));
  for (const table of tables)
    for (const column of table.columns) {
      const rule = table.rules.get(column.name);
      const reason = rule ? rejected(table, column, rule, byOid) : null;
      if (reason !== null) problems.push({ table: shownName(table), column: column.name, reason });
    }
  const isRefused = unlisted === 'refuse_likely_personal';
  const isRead = isRefused || reading.suggest;
  const uncovered = isRead ? await readUncovered(session, { tables, byOid }, reading) : [];
  if (isRefused) problems.push(...uncovered);
  return { tables, problems, uncovered };
}

/** Which tables lose their rows. */
export interface EmptyingPlan {
  emptied: MaskedTable[];
  problems: MaskingProblem[];
}

/**
 * Compares the tables whose rows are to stay with a database. Tables of extensions stay too: they are part of
 * these.
 * @param keep tables, as rules name them; partitions and tables that inherit from them stay with them
 */
export async function planEmptying(session: Session, keep: readonly string[]): Promise<EmptyingPlan> {
  const tables = await readTables(session);
  const { rows } = await session.query<{ oid: string }>(
    `SELECT objid::text AS oid FROM pg_depend
     WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_extension'::regclass AND deptype = 'e'`,
  );
  const ofExtensions = new Set(rows.map(({ oid }) => oid));
  const problems: MaskingProblem[] = [];
  const kept = new Set<string>();
  for (const table of keep) {
    const wanted = tableOf({ table });
    const found = tables.find(({ schema, name }) => schema === wanted.schema && name === wanted.name);
    if (found) kept.add(found.oid);
    else problems.push({ table: shownName(wanted), column: null, reason: 'there is no such table' });
  }
  for (let size = -1; size !== kept.size; ) {
    size = kept.size;
    for (const { oid, parents } of tables) if (parents.some((parent) => kept.has(parent))) kept.add(oid);
  }
  const emptied = tables.filter(({ oid }) => !kept.has(oid) && !ofExtensions.has(oid));
  const byOid = new Map(emptied.map((table) => [table.oid, table]));
  for (const { name, from, to } of await readForeignKeys(session)) {
    const referencing = tables.find(({ oid }) => oid === from);
    const referenced = byOid.get(to);
    if (referencing && referenced && kept.has(from))
      problems.push({
        table: shownName(referenced),
        column: null,
        reason: `${shownName(referencing)} is kept and refers to it by the foreign key ${name}: keep both`,
      });
  }
  return { emptied, problems };
}
