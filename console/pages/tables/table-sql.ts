/** Statements that the console makes for a table. Names and values of a person never become part of their grammar. */

interface TableName {
  schema: string;
  name: string;
}

interface Column {
  name: string;
  type: string;
  generated?: string | null;
  identity?: string | null;
}

/** The rows that a page shows, as it asks the API for them. */
interface Shown {
  filters: readonly { column: string; operator: string; value?: string }[];
  order: { column: string; direction: string } | null;
}

const identifier = (name: string) => `"${name.replaceAll('"', '""')}"`;
const literal = (text: string) => `'${text.replaceAll("'", "''")}'`;
const nameOf = ({ schema, name }: TableName) => `${identifier(schema)}.${identifier(name)}`;

const OPERATORS: Readonly<Record<string, string>> = {
  eq: '=',
  ne: '<>',
  lt: '<',
  le: '<=',
  gt: '>',
  ge: '>=',
};

/** The same rows as the page of the API shows for the selection. */
export function selectOf(table: TableName, what: string, { filters, order }: Shown) {
  const params: string[] = [];
  const conditions = filters.map(({ column, operator, value = '' }) => {
    const cell = identifier(column);
    if (operator === 'is_null' || operator === 'is_not_null')
      return `${cell} is ${operator === 'is_null' ? 'not ' : ''}distinct from null`;
    const parameter = `$${params.push(value)}`;
    if (operator === 'contains') return `strpos(lower(${cell}::text), lower(${parameter}::text)) > 0`;
    return `${cell} ${OPERATORS[operator]} ${parameter}`;
  });
  const where = conditions.length > 0 ? ` where ${conditions.join(' and ')}` : '';
  const by = order ? ` order by ${identifier(order.column)} ${order.direction}` : '';
  return { sql: `select ${what} from ${nameOf(table)}${where}${by}`, params };
}

/** A cell of CSV; null is an empty one without quotes. */
export type CsvCell = string | null;

/**
 * The cells of a CSV text (RFC 4180), with the line ends of any system.
 * @throws Error for a quote that does not end, and for rows of different lengths
 */
export function parseCsv(text: string): CsvCell[][] {
  const rows: CsvCell[][] = [];
  let row: CsvCell[] = [];
  const token = /"((?:[^"]|"")*)"|([^",\r\n]*)/y;
  let at = text.startsWith('\uFEFF') ? 1 : 0;
  while (at < text.length || row.length > 0) {
    token.lastIndex = at;
    const found = token.exec(text);
    if (!found || (text[at] === '"' && found[1] === undefined))
      throw new Error(`The quote in line ${rows.length + 1} does not end.`);
    row.push(found[1] === undefined ? found[2] || null : found[1].replaceAll('""', '"'));
    at = token.lastIndex;
    if (text[at] === ',') {
      at += 1;
      if (at < text.length) continue;
      row.push(null);
    } else if (at < text.length && !/[\r\n]/.test(text[at] ?? '')) {
      throw new Error(`A quoted cell in line ${rows.length + 1} is followed by text.`);
    }
    if (text[at] === '\r') at += 1;
    if (text[at] === '\n') at += 1;
    rows.push(row);
    row = [];
  }
  const [names = [], ...others] = rows.filter((cells) => cells.length > 1 || cells[0] !== null);
  const uneven = others.findIndex((cells) => cells.length !== names.length);
  if (uneven >= 0)
    throw new Error(
      `Row ${uneven + 2} has ${others[uneven]?.length} cells, and the first row ${names.length}.`,
    );
  return [names, ...others];
}

/** The first type that all values have; a number with a leading zero is a text. */
const TYPES: readonly (readonly [type: string, form: RegExp])[] = [
  ['bigint', /^-?(?:0|[1-9]\d{0,17})$/],
  ['numeric', /^-?(?:0|[1-9]\d*)(?:\.\d+)?$/],
  ['boolean', /^(?:true|false|t|f)$/],
  ['date', /^\d{4}-\d\d-\d\d$/],
  ['timestamptz', /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)$/],
  ['timestamp', /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?$/],
  ['uuid', /^[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i],
];

/** The type that fits all cells of a column. */
export function typeOf(cells: readonly CsvCell[]): string {
  const values = cells.filter((cell) => cell !== null);
  if (values.length === 0) return 'text';
  return TYPES.find(([, form]) => values.every((value) => form.test(value)))?.[0] ?? 'text';
}

export interface CsvColumn {
  name: string;
  type: string;
}

/** A statement that inserts the rows, whose cells PostgreSQL reads as the types of the columns. */
export function insertOf(
  table: TableName,
  columns: readonly CsvColumn[],
  rows: readonly (readonly CsvCell[])[],
): string {
  // By position, because a name could be one that JSON treats in a way of its own.
  const records = rows.map((cells) => Object.fromEntries(cells.map((cell, at) => [`c${at}`, cell])));
  const names = columns.map(({ name }) => identifier(name)).join(', ');
  const cells = columns.map(({ type }, at) => `c${at}::${type}`).join(', ');
  const record = columns.map((_, at) => `c${at} text`).join(', ');
  return `insert into ${nameOf(table)} (${names}) select ${cells} from json_to_recordset(${literal(JSON.stringify(records))}) as r (${record})`;
}

const KEY = 'id';

/** Whether a column can be the primary key of a new table. */
const isKey = (cells: readonly CsvCell[]) =>
  cells.every((cell) => cell !== null) && new Set(cells).size === cells.length;

/** A statement for the table of a CSV file. Without a key of its own, it gets one: rows without a key cannot be edited. */
export function createOf(
  table: TableName,
  columns: readonly CsvColumn[],
  rows: readonly (readonly CsvCell[])[],
): string {
  const at = columns.findIndex(({ name }) => name.toLowerCase() === KEY);
  const hasKey = at >= 0 && isKey(rows.map((cells) => cells[at] ?? null));
  const definitions = columns.map(
    ({ name, type }, index) => `${identifier(name)} ${type}${hasKey && index === at ? ' primary key' : ''}`,
  );
  if (!hasKey && at < 0) definitions.unshift(`${KEY} bigint generated always as identity primary key`);
  return `create table ${nameOf(table)} (${definitions.join(', ')})`;
}

/** The columns of a table for those of a CSV file. @throws Error for one that the table does not have, or generates */
export function columnsFor(names: readonly CsvCell[], columns: readonly Column[]): CsvColumn[] {
  return names.map((name) => {
    const column = columns.find((each) => each.name === name);
    if (!column) throw new Error(`The table has no column “${name ?? ''}”. The first row names the columns.`);
    if ((column.generated ?? null) !== null || column.identity === 'always')
      throw new Error(`PostgreSQL generates the column “${column.name}”. Leave it out of the file.`);
    return { name: column.name, type: column.type };
  });
}

/** The form that a text has to have before it is staged; null if it is in order, or if only PostgreSQL knows. */
export function formProblem({ type }: Pick<Column, 'type'>, text: string): string | null {
  if (/^jsonb?$/.test(type)) {
    try {
      JSON.parse(text);
    } catch (error) {
      return `This is no JSON: ${error instanceof Error ? error.message : String(error)}`;
    }
  }
  if (type.endsWith('[]') && !/^\s*(?:\[[^{]*=)?\{[\s\S]*\}\s*$/.test(text))
    return 'An array is written in braces, such as {1,2} or {"a","b"}.';
  return null;
}
