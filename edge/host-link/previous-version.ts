import type { Notification } from '../../shared/protocol/notifications.ts';
import type { Method, Params } from '../../shared/protocol/operations.ts';

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
  method?: string;
  /** The parameters there; null if they need the present version. Default: the same. */
  params?: (params: Params<M>) => Values | null;
  /** The result in its present form. Default: the same. */
  result?: (result: Values) => Values;
}

const MANAGED_BRANCH = /^db_/;
const CLOSED_MAX = 100;

const hasFewClosed = ({ access }: Pick<Params<'access.apply'>, 'access'>) =>
  access.closed.length <= CLOSED_MAX;

/** That version bounds projects, and knows no tenants. */
const withoutTenant = <P extends Pick<Params<'access.apply'>, 'access'>>({ access, ...params }: P) => {
  const { tenant: _, ...known } = access;
  return { ...params, access: known };
};

type NewBranches = Pick<Params<'branch.finalize'>, 'project_id' | 'branches'>;

/** That version makes one branch with a call, and builds it under the id of the job. */
const ofOneBranch = ({ project_id, branches: [first, ...others], ...params }: NewBranches): Values | null => {
  if (!first || others.length > 0) return null;
  const { build_id, ...branch } = first;
  return { ...params, ...branch, job_id: build_id, project_id };
};

/** What that version does not report about its host. */
const UNDESCRIBED = { disk_bytes: null, largest_source: null, last_backup_at: null, last_archived_at: null };

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
    params: (params) => (hasFewClosed(params) ? ofOneBranch(withoutTenant(params)) : null),
  },
  'branch.clone': {
    params: (params) =>
      params.source === null || MANAGED_BRANCH.test(params.source) ? ofOneBranch(params) : null,
  },
  'branch.finalize': { method: 'branch.publish', params: ofOneBranch },
  'branch.prove': { params: ofOneBranch },
  'branch.drop': { params: ({ made_by, ...params }) => (made_by === null ? params : null) },
  'project.drop': {},
  'access.apply': { params: (params) => (hasFewClosed(params) ? withoutTenant(params) : null) },
  'table.list': {},
  'row.list': {
    params: ({ filter, order, ...params }) => (filter.length + order.length === 0 ? params : null),
  },
  'row.update': {},
  'row.delete': {},
};

/** @returns null if the call needs the present version */
export function toPreviousVersion<M extends Method>(method: M, params: Params<M>): OlderCall | null {
  const translation = OPERATIONS[method] as Translation<M> | undefined;
  const older = translation && (translation.params ? translation.params(params) : params);
  return older ? { method: translation?.method ?? method, params: older as Values } : null;
}

/** A result of an agent of the previous version, in the present form. It is not validated yet. */
export const resultFromPreviousVersion = (method: Method, result: Values): Values =>
  (OPERATIONS[method] as Translation<Method> | undefined)?.result?.(result) ?? result;

/** What that version did not measure. */
const UNMEASURED = {
  file_count: null,
  memory_bytes: null,
  longest_query_seconds: 0,
  connection_wait_seconds: null,
  dead_tuple_ratio: null,
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
