import type { Host } from '../../../agent/host/host.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { Method, MethodResult, Params } from '../../../shared/protocol/operations.ts';
import type { Cell, RowId, Scalar } from '../../../shared/protocol/tables.ts';
import { asClient, type Branch } from './host-project.ts';

/** A page whose cells have the names of their columns. */
export interface Page extends Omit<MethodResult<'row.list'>, 'rows'> {
  rows: Record<string, Cell>[];
}

interface Change {
  column: string;
  primary_key?: string[];
  id: RowId | Scalar;
  value: Scalar | null;
  expected?: Scalar | null;
}

/** Calls the row operations of one branch, as the edge does. */
export class Browser {
  readonly #host: Host;
  readonly #branch: Branch;

  constructor(host: Host, branch: Branch) {
    this.#host = host;
    this.#branch = branch;
  }

  /** Runs SQL as the branch's owner. */
  owner = (sql: string) => asClient(this.#host, 'direct', this.#branch, 'owner', sql);

  async tables(schema: string | null = null, after: Params<'table.list'>['after'] = null) {
    return this.#run('table.list', { schema, after });
  }

  async page(
    table: string,
    offset = 0,
    limit = 50,
    schema = 'public',
    selection: Partial<Pick<Params<'row.list'>, 'filter' | 'order'>> = {},
  ): Promise<Page> {
    const wanted = { schema, table, limit, offset, filter: [], order: [], ...selection };
    const page = await this.#run('row.list', wanted);
    return { ...page, rows: page.rows.map((row) => named(page.columns, row)) };
  }

  async update(table: string, change: Change, schema = 'public') {
    const { column, primary_key = ['id'], id, value, expected } = change;
    const { tables, outcomes } = await this.change([
      {
        action: 'update',
        schema,
        table,
        primary_key,
        id: [id].flat(),
        values: [{ column, value }],
        expected: expected === undefined ? [] : [{ column, value: expected }],
      },
    ]);
    const { conflict, row } = outcomes[0] ?? {};
    if (conflict) throw Object.assign(new Error('the row is another one than expected'), { conflict });
    return Object.fromEntries((tables[0]?.columns ?? []).map((name, at) => [name, row?.[at] ?? null]));
  }

  /** @returns the number of deleted rows, and the indexes of the ids without a row */
  async delete(table: string, ids: (RowId | Scalar)[], primary_key = ['id'], schema = 'public') {
    const { outcomes } = await this.change(
      ids.map((id) => ({
        action: 'delete',
        schema,
        table,
        primary_key,
        id: [id].flat(),
        expected: [],
        must_exist: false,
      })),
    );
    const missing = outcomes.flatMap(({ change, skipped }) => (skipped ? [change] : []));
    return { deleted: ids.length - missing.length, missing };
  }

  describe(table: string, schema = 'public') {
    return this.#run('table.describe', { schema, table });
  }

  change(changes: object[]) {
    return this.#run('row.change', { changes: changes.map((change) => ({ schema: 'public', ...change })) });
  }

  /** The result of one statement. */
  async query(sql: string, params: (Scalar | null)[] = [], role: Params<'query.run'>['role'] = 'read_only') {
    const { results } = await this.script(sql, role, params);
    if (results[0] === undefined || results.length > 1) throw new Error(`${results.length} results`);
    return results[0];
  }

  script(sql: string, role: Params<'query.run'>['role'] = 'read_only', params: (Scalar | null)[] = []) {
    return this.#run('query.run', { project_id: this.#branch.project_id, role, sql, params });
  }

  #run<M extends Method>(method: M, params: object): Promise<MethodResult<M>> {
    const { branch_id, database } = this.#branch;
    return runOperation(this.#host, method, { branch_id, database, ...params });
  }
}

const named = (columns: MethodResult<'row.list'>['columns'], row: Cell[]) =>
  Object.fromEntries(columns.map(({ name }, index) => [name, row[index] ?? null]));
