import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';
import type { Notification } from '../../shared/protocol/notifications.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { RowChange, RowOutcome } from '../../shared/protocol/tables.ts';

/**
 * How to speak with an agent of `PREVIOUS_VERSION`, version 3. To be replaced as a whole when another version
 * is released; `test/edge/host-link/previous-version.test.ts` checks it against the schemas of that release.
 */

type Values = Record<string, unknown>;

/** A call as the agent of the previous version knows it. */
interface OlderCall {
  method: string;
  params: Values;
}

interface Translation<M extends Method> {
  /** The method's name there; default: the same. */
  method?: string | ((params: Params<M>) => string);
  /** The parameters there; null if they need the present version. Default: the same. */
  params?: (params: Params<M>) => Values | null;
  /** The result in its present form. Default: the same. */
  result?: (result: Values, params: Params<M>) => Values;
  /** The result in place of a failure, if the present form has one. Default: none. */
  ofFailure?: (code: HostFailureCode) => MethodResult<M> | null;
}

const MANAGED_BRANCH = /^db_/;
const CLOSED_MAX = 100;

/** That version bounds projects, knows no tenants, standbys and SQL over HTTP, and counts connection attempts by its own setting. */
const olderAccess = <P extends Pick<Params<'access.apply'>, 'access'>>({ access, ...params }: P) => {
  const {
    connection_attempts: _attempts,
    settings: _settings,
    tenant: _tenant,
    spares: _spares,
    durability: _durability,
    sql_rules: _sql,
    ...older
  } = access;
  return access.closed.length <= CLOSED_MAX ? { ...params, access: older } : null;
};

type NewBranches = Pick<Params<'branch.finalize'>, 'project_id' | 'branches'>;

/** That version makes one branch with a call, and builds it under the id of the job. */
const ofOneBranch = ({ project_id, branches: [first, ...others], ...params }: NewBranches): Values | null => {
  if (!first || others.length > 0) return null;
  const { build_id, ...branch } = first;
  return { ...params, ...branch, job_id: build_id, project_id };
};

/** That version changes one cell with a call, or deletes rows of one table by the same key. */
function ofOneTable({ changes, ...database }: Params<'row.change'>): Values | null {
  const [first] = changes;
  if (first?.action === 'update') return changes.length === 1 ? ofOneCell(database, first) : null;
  if (first?.action !== 'delete') return null;
  const { schema, table, primary_key } = first;
  const key = JSON.stringify([schema, table, primary_key]);
  const ids = changes.flatMap((change) => (isPlainDeletion(change, key) ? [change.id] : []));
  return ids.length === changes.length ? { ...database, schema, table, primary_key, ids } : null;
}

function ofOneCell(
  database: Values,
  { action: _, values, expected, ...row }: RowChange & { action: 'update' },
): Values | null {
  const [cell, ...more] = values;
  const [wanted = null, ...others] = expected;
  if (!cell || more.length + others.length > 0) return null;
  if (wanted && wanted.column !== cell.column) return null;
  return { ...database, ...row, ...cell, expected: wanted && { value: wanted.value } };
}

const isPlainDeletion = (change: RowChange, key: string): change is RowChange & { action: 'delete' } =>
  change.action === 'delete' &&
  !change.must_exist &&
  change.expected.length === 0 &&
  JSON.stringify([change.schema, change.table, change.primary_key]) === key;

const outcomeOf = (change: number, outcome: Partial<RowOutcome>) => ({
  change,
  table: 0,
  row: null,
  conflict: null,
  skipped: false,
  ...outcome,
});

/** That version describes no table of which it deletes rows. */
const UNDESCRIBED_TABLE = { columns: [], key: [] };

function changedOneTable({ columns, row, missing }: Values, { changes }: Params<'row.change'>): Values {
  if (Array.isArray(missing)) {
    const outcomes = changes.map((_, at) => outcomeOf(at, { skipped: missing.includes(at) }));
    return { tables: [UNDESCRIBED_TABLE], outcomes };
  }
  const known = Array.isArray(columns) ? columns : [];
  const table = {
    columns: known.map(({ name }) => name),
    key: known.flatMap(({ name, is_primary_key }) => (is_primary_key ? [name] : [])),
  };
  return { tables: [table], outcomes: [{ ...outcomeOf(0, {}), row }] };
}

/** Conflicts are failures there, without the present row. */
const CONFLICTS: { [C in HostFailureCode]?: RowOutcome['conflict'] } = {
  ROW_NOT_FOUND: 'missing',
  ROW_CHANGED: 'changed',
};

/** What that version does not report about its host. */
const UNDESCRIBED = {
  disk_bytes: null,
  largest_source: null,
  spares: null,
  last_backup_at: null,
  last_archived_at: null,
  recoverable_from: null,
  past_hours: null,
  certificate_names: null,
};

/** The operations of that version. Every other one needs the present version. */
const OPERATIONS: { [M in Method]?: Translation<M> } = {
  'host.describe': { result: (result) => ({ ...UNDESCRIBED, ...result }) },
  // Null is no empty list: what an agent does not tell must not look like a loss.
  'host.inventory': {
    result: ({ branches, ...result }) => ({
      ...result,
      branches: Array.isArray(branches) ? branches.map((branch) => ({ ...branch, made_by: null })) : branches,
      free_bytes: null,
      snapshots: null,
    }),
  },
  'branch.prepare': {
    params: (params) => {
      const older = olderAccess(params);
      return older && ofOneBranch(older);
    },
  },
  'branch.clone': {
    params: (params) =>
      params.source === null || MANAGED_BRANCH.test(params.source) ? ofOneBranch(params) : null,
    result: (result) => ({ ...result, created_by: result.created === true ? 'clone' : null }),
  },
  'branch.finalize': { method: 'branch.publish', params: ofOneBranch },
  'branch.prove': { params: ofOneBranch },
  'branch.drop': { params: ({ made_by, ...params }) => (made_by === null ? params : null) },
  // No project has moved to or from an agent of that version.
  'project.drop': { params: ({ up_to_revision: _, ...params }) => params },
  'access.apply': { params: olderAccess },
  'table.list': {},
  'row.list': {
    params: ({ filter, order, ...params }) => (filter.length + order.length === 0 ? params : null),
  },
  'row.change': {
    method: ({ changes: [first] }) => (first?.action === 'update' ? 'row.update' : 'row.delete'),
    params: ofOneTable,
    result: changedOneTable,
    ofFailure(code) {
      const conflict = CONFLICTS[code];
      return conflict ? { tables: [UNDESCRIBED_TABLE], outcomes: [outcomeOf(0, { conflict })] } : null;
    },
  },
};

const translationOf = <M extends Method>(method: M) => OPERATIONS[method] as Translation<M> | undefined;

/** @returns null if the call needs the present version */
export function toPreviousVersion<M extends Method>(method: M, params: Params<M>): OlderCall | null {
  const translation = translationOf(method);
  const older = translation && (translation.params ? translation.params(params) : params);
  if (!older) return null;
  const name = typeof translation.method === 'function' ? translation.method(params) : translation.method;
  return { method: name ?? method, params: older as Values };
}

/** A result of an agent of the previous version, in the present form. It is not validated yet. */
export const resultFromPreviousVersion = <M extends Method>(
  method: M,
  result: Values,
  params: Params<M>,
): Values => translationOf(method)?.result?.(result, params) ?? result;

/** The result that stands for a failure of an agent of the previous version; null if it stays a failure. */
export const resultOfPreviousFailure = <M extends Method>(
  method: M,
  { code }: Pick<HostFailure, 'code'>,
): MethodResult<M> | null => translationOf(method)?.ofFailure?.(code) ?? null;

/** What that version did not measure. */
const UNMEASURED = {
  file_count: null,
  memory_bytes: null,
  longest_query_seconds: 0,
  connection_wait_seconds: null,
  dead_tuple_ratio: null,
  following_lag_seconds: null,
};

const NOTIFICATIONS: { [N in Notification]?: (params: Values) => Values } = {
  measurement: ({ branches, ...measurement }) => ({
    ...measurement,
    branches: Array.isArray(branches) ? branches.map((branch) => ({ ...UNMEASURED, ...branch })) : branches,
  }),
};

/** The parameters of a notification in the present form. They are not validated yet. */
export const notificationFromPreviousVersion = (method: Notification, params: Values): Values =>
  NOTIFICATIONS[method]?.(params) ?? params;
