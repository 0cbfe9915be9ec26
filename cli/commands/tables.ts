import { Command, InvalidArgumentError, Option } from 'commander';
import type { Schemas } from '../../client/client.ts';
import { dataOf } from '../../client/response-error.ts';
import { collect, readCount } from '../option-values.ts';
import { isJson, printRecord, printRecords, printSections, say } from '../output.ts';
import { branchPath, openSession, projectOf } from '../session.ts';

const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';
const TABLE = `${BRANCH}/tables/{table}` as const;

export const branchOption = [
  '--branch <branch>',
  'name or ID (default: the pinned branch, or main)',
] as const;
const schemaOption = ['--schema <schema>', 'default: public'] as const;

interface InBranch {
  branch?: string;
  schema?: string;
}

const schemaOf = ({ schema }: InBranch) => (schema === undefined ? {} : { schema });

const TABLE_FIELDS = ['schema', 'name', 'kind', 'estimated_rows', 'primary_key', 'comment'];
const COLUMN_FIELDS = ['name', 'type', 'nullable', 'value', 'comment'];

/** A column with what gives it a value where a new row names none. */
const columnOf = (column: Schemas['TableDetails']['columns'][number]) => ({
  ...column,
  nullable: column.nullable ? 'null' : 'not null',
  value: column.identity
    ? `identity ${column.identity.replace('_', ' ')}`
    : [column.generated && `generated ${column.generated}`, column.default].filter(Boolean).join(' '),
});

function extensionCommand(): Command {
  const group = new Command('extension').description("Extensions of the project's host");
  group
    .command('list')
    .description('List the extensions, and whether the owner of a branch can create them')
    .option('--all', 'also those that need a superuser')
    .action(async ({ all }: { all?: boolean }, command: Command) => {
      const session = openSession(command);
      const params = { path: { project_id: await projectOf(command, session) } };
      const { extensions } = await dataOf(
        session.client.api.GET('/api/v1/projects/{project_id}/extensions', { params }),
      );
      const shown = all ? extensions : extensions.filter(({ trusted }) => trusted);
      printRecords(command, shown, ['name', 'default_version', 'trusted', 'comment']);
    });
  return group;
}

function tableCommand(): Command {
  const group = new Command('table').description('Tables of a branch');
  group
    .command('list')
    .description('List tables')
    .option(...branchOption)
    .option('--schema <schema>', 'only of this schema')
    .action(async (options: InBranch, command: Command) => {
      const session = openSession(command);
      const params = { path: await branchPath(command, session, options.branch), query: schemaOf(options) };
      const { tables } = await dataOf(session.client.api.GET(`${BRANCH}/tables`, { params }));
      printRecords(command, tables, ['schema', 'name', 'kind', 'estimated_rows', 'size_bytes']);
    });
  group
    .command('get')
    .description('Show a table with its columns, constraints and indexes')
    .argument('<table>')
    .option(...branchOption)
    .option(...schemaOption)
    .action(async (table: string, options: InBranch, command: Command) => {
      const session = openSession(command);
      const path = { ...(await branchPath(command, session, options.branch)), table };
      const params = { path, query: schemaOf(options) };
      const found = await dataOf(session.client.api.GET(TABLE, { params }));
      if (isJson(command)) return printRecord(command, found);
      const record = { ...found, primary_key: found.primary_key.join(', ') };
      printSections(command, record, TABLE_FIELDS, [
        { title: 'Columns', records: found.columns.map(columnOf), columns: COLUMN_FIELDS },
        { title: 'Indexes', records: found.indexes, columns: ['name', 'definition'] },
        { title: 'Constraints', records: found.constraints, columns: ['name', 'kind', 'definition'] },
      ]);
    });
  return group;
}

const COMPARISONS = ['eq', 'ne', 'lt', 'le', 'gt', 'ge', 'contains'];
const CHECKS = ['is_null', 'is_not_null'];

interface Filter {
  column: string;
  operator: string;
  value?: string;
}

const COMPARISON = new RegExp(`^(.+?) (${COMPARISONS.join('|')}) (.*)$`, 's');
const CHECK = new RegExp(`^(.+) (${CHECKS.join('|')})$`, 's');
const FORMS = `"column operator value" with ${COMPARISONS.join(', ')}, or "column operator" with ${CHECKS.join(' or ')}`;

/** Parses a condition, and collects an option that can be repeated. */
function readFilter(text: string, previous: Filter[] = []): Filter[] {
  const [, column, operator = '', value] = COMPARISON.exec(text) ?? CHECK.exec(text) ?? [];
  if (column === undefined) throw new InvalidArgumentError(`Give ${FORMS}.`);
  return [...previous, { column, operator, ...(value !== undefined && { value }) }];
}

interface Order {
  column: string;
  direction: 'asc' | 'desc';
}

/** Parses `column` or `column desc`, and collects an option that can be repeated. */
function readOrder(text: string, previous: Order[] = []): Order[] {
  const [, column = text, direction = 'asc'] = /^(.+) (asc|desc)$/s.exec(text) ?? [];
  return [...previous, { column, direction: direction as Order['direction'] }];
}

interface RowOptions extends InBranch {
  filter?: Filter[];
  order?: Order[];
  limit?: number;
  offset?: number;
}

const rows = () =>
  new Command('rows')
    .description('Print rows of a table')
    .argument('<table>')
    .option(...branchOption)
    .option(...schemaOption)
    .option('--filter <condition>', `only rows that meet it, as ${FORMS}; can be repeated`, readFilter)
    .option('--order <column>', 'order of the rows, as "column" or "column desc"; can be repeated', readOrder)
    .option('--limit <n>', 'number of rows', readCount)
    .option('--offset <n>', 'rows to skip', readCount)
    .action(async (table: string, options: RowOptions, command: Command) => {
      const { branch, filter, order, limit, offset } = options;
      const session = openSession(command);
      const path = { ...(await branchPath(command, session, branch)), table };
      const query = {
        ...schemaOf(options),
        ...(filter && { filter: JSON.stringify(filter) }),
        ...(order && { sort: JSON.stringify(order) }),
        ...(limit !== undefined && { limit }),
        ...(offset !== undefined && { offset }),
      };
      const page = await dataOf(session.client.api.GET(`${TABLE}/rows`, { params: { path, query } }));
      printRecords(
        command,
        page.rows,
        page.columns.map(({ name }) => name),
      );
      if (page.has_more) say(`There are more rows: --offset ${page.offset + page.rows.length}.`);
    });

interface QueryOptions {
  branch?: string;
  param?: string[];
  write?: boolean;
  owner?: boolean;
}

type Result = Omit<Schemas['QueryResult'], 'results'>;

/** Prints what one statement returned. Rows are data, and everything else is for a person. */
export function printResult(
  command: Command,
  { columns, rows, has_more, command: kind, row_count }: Result,
): void {
  // Columns can have the same name, so their position identifies them.
  const names = columns.map((_, at) => String(at));
  const titles = columns.map(({ name }) => name);
  const records = rows.map((row) => Object.fromEntries(row.map((value, at) => [String(at), value])));
  printRecords(command, records, names, titles);
  if (has_more) say('There are more rows than fit into one response.');
  if (titles.length === 0) say(`${kind ?? 'Done'}${row_count === null ? '' : ` ${row_count}`}`);
}

const query = () =>
  new Command('query')
    .description(
      'Run SQL statements through the gateway in one transaction, without psql and without a network rule',
    )
    .argument('<sql>', 'one statement, with parameters $1, $2, …, or several without parameters')
    .option(...branchOption)
    .option('--param <value>', 'value of the next parameter; can be repeated', collect)
    .option('--write', 'with the read-write login; refused on main and on protected branches')
    .addOption(
      new Option(
        '--owner',
        'with the owner login, which can change the schema; refused on main and on protected branches',
      ).conflicts('write'),
    )
    .action(async (sql: string, options: QueryOptions, command: Command) => {
      const session = openSession(command);
      const path = await branchPath(command, session, options.branch);
      const role = options.owner ? 'owner' : options.write ? 'read_write' : 'read_only';
      const body = { sql, params: options.param ?? [], role } as const;
      const result = await dataOf(session.client.api.POST(`${BRANCH}/query`, { params: { path }, body }));
      if (isJson(command)) return printRecord(command, result);
      for (const each of result.results ?? [result]) printResult(command, each);
    });

export const tableCommands = (): Command[] => [tableCommand(), rows(), query(), extensionCommand()];
