import type { ActorType } from '../../shared/actor-types.ts';
import type { BranchRole } from '../../shared/branch/login.ts';

type OptionValue = string | readonly string[] | boolean | undefined;

/** A word of a shell, whatever is in it. */
const quoted = (text: string) =>
  /^[\w.,:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;

/**
 * A line of the command line tool.
 * @param options by name. `true` is a flag, each text of a list is an option of its own, and an empty text is
 *   none
 * @param last an argument that may begin like an option
 */
function line(words: readonly string[], options: Readonly<Record<string, OptionValue>> = {}, last?: string) {
  const written = Object.entries(options).flatMap(([name, value]) => {
    if (typeof value === 'boolean') return value ? [`--${name}`] : [];
    const values = typeof value === 'string' ? [value] : (value ?? []);
    return values.filter((each) => each !== '').flatMap((each) => [`--${name}`, each]);
  });
  const all = ['branchgate', ...words, ...written, ...(last === undefined ? [] : ['--', last])];
  return all.map(quoted).join(' ');
}

/** Lines of which each runs if the one before succeeds. */
const chain = (...lines: string[]) => lines.join(' && ');

/** Lifespans as the command line has them for a new branch; a week is its default. */
const DURATIONS: Readonly<Record<string, string>> = { '1m': '30d', '6m': '183d', '1y': '365d' };

interface NewBranch {
  project: string;
  name: string;
  source: string;
  isSnapshot: boolean;
  /** ISO 8601; empty: now. */
  at: string;
  data: 'full' | 'masked' | 'none';
  lifespan: string;
  allow: readonly string[];
}

interface ChangedProject {
  name: string;
  quota: string;
  attempts: string;
  /** Empty: it stays as it is. */
  spares: string;
  /** Empty: it stays as it is. */
  durability: string;
  /** Empty: it stays as it is. */
  maskedOnly: string;
  /** Empty: no passwords are replaced. */
  rotation: string;
  /** Empty: it stays as it is. */
  approvals: string;
}

interface NewKey {
  name: string;
  role: string;
  isReadOnly: boolean;
  project: string;
  pattern: string;
  cidrs: readonly string[];
  days: string;
}

interface NewTrust {
  issuer: string;
  audience: string;
  claims: Record<string, string>;
  role: string;
  branch_pattern: string | null;
}

interface ShownRows {
  filters: readonly { column: string; operator: string; value?: string }[];
  order: { column: string; direction: string } | null;
}

/** The services with a command of their own, by their issuer, and the claim that names a repository. */
const TRUSTED_SERVICES: Record<string, readonly [string, string]> = {
  'https://token.actions.githubusercontent.com': ['github', 'repository'],
  'https://gitlab.com': ['gitlab', 'project_path'],
};

/** The lines of the command line tool that do what the pages do. */
export const COMMANDS = {
  listProjects: line(['project', 'list']),
  createProject: (name: string, region: string, extensions: readonly string[]) =>
    line(['project', 'create', name || 'NAME'], { extension: extensions, region: region || undefined }),
  updateProject: (
    project: string,
    { name, quota, attempts, spares, durability, maskedOnly, rotation, approvals }: ChangedProject,
  ) =>
    line(['project', 'update', project], {
      name,
      quota,
      spares,
      durability,
      'connection-attempts': attempts,
      'masked-only': maskedOnly,
      'rotate-credentials': rotation,
      'change-approvals': approvals,
    }),
  deleteProject: (project: string) => line(['project', 'delete', project]),
  listProjectMembers: (id: string) => line(['api', 'GET', `/api/v1/projects/${id}/members`]),

  listBranches: (project: string) => line(['branch', 'list'], { project }),
  suggestMasking: (project: string) => line(['masking', 'suggest'], { project }),
  checkMasking: (project: string, branch: string) => line(['masking', 'check', branch], { project }),
  createBranch: ({ project, name, source, isSnapshot, at, data, lifespan, allow }: NewBranch) => {
    const options = {
      project,
      snapshot: isSnapshot ? source : '',
      from: isSnapshot || source === 'main' ? '' : source,
      at: isSnapshot ? '' : at,
      data: isSnapshot || data === 'full' ? '' : data,
      ttl: DURATIONS[lifespan],
      allow,
    };
    const creation = line(['branch', 'create', name || 'NAME'], options);
    return lifespan === 'forever'
      ? chain(creation, COMMANDS.extendBranch(project, [name || 'NAME'], lifespan))
      : creation;
  },
  extendBranch: (project: string, names: readonly string[], lifespan: string): string =>
    chain(...names.map((name) => line(['branch', 'extend', name], { lifespan, project }))),
  deleteBranch: (project: string, names: readonly string[], purge: boolean) =>
    line(['branch', 'delete', ...names], { purge, project }),
  resetBranch: (project: string, name: string, to: string, isGuarded: boolean, at = '') =>
    line(['branch', 'reset', name], {
      to: to === 'parent' || at !== '' ? '' : to,
      at,
      confirm: isGuarded ? name : '',
      project,
    }),
  branchSettings: (project: string, name: string, settings: Readonly<Record<string, string | null>>) =>
    line(['branch', 'update', name], {
      setting: Object.entries(settings).map(([setting, value]) => `${setting}=${value ?? ''}`),
      project,
    }),
  renameBranch: (project: string, name: string, wanted: string) =>
    line(['branch', 'rename', name, wanted], { project }),
  protectBranch: (project: string, name: string, isProtected: boolean) =>
    line(['branch', isProtected ? 'protect' : 'unprotect', name], { project }),
  difference: (project: string, branch: string, against: string, part: string) =>
    line(['branch', 'diff', branch], {
      against: against === 'parent' ? '' : against,
      schema: part === 'schema',
      project,
    }),
  listDeleted: (project: string) => line(['branch', 'list'], { status: 'deleted', project }),
  restoreBranch: (project: string, name: string, as: string) =>
    line(['branch', 'restore', name], { name: as === name ? '' : as, project }),
  purgeBranch: (projectId: string, id: string) =>
    line(['api', 'DELETE', `/api/v1/projects/${projectId}/branches/${id}?purge=true`]),

  listChanges: (project: string) => line(['change', 'list'], { project }),
  createChange: (project: string, from: string, hasSql: boolean) =>
    line(['change', 'create'], { from, file: hasSql ? 'migration.sql' : '', project }),
  actOnChange: (project: string, verb: 'rehearse' | 'approve' | 'apply' | 'undo' | 'delete', id: string) =>
    line(['change', verb, id], { project }),
  listSnapshots: (project: string) => line(['snapshot', 'list'], { project }),
  takeSnapshot: (project: string, branch: string, name: string, seconds: string) =>
    line(['snapshot', 'create', branch], { name, ttl: seconds && `${seconds}s`, project }),
  deleteSnapshot: (project: string, id: string) => line(['snapshot', 'delete', id], { project }),
  scheduleSnapshots: (project: string, every: string, keep: string, masked: boolean) =>
    line(['project', 'update', project], {
      'snapshot-every': every || 'never',
      'snapshot-keep': every && keep,
      'snapshot-masked': every && masked ? 'on' : '',
    }),

  connectionString: (project: string, branch: string, role: string) =>
    line(['connection-string', branch], { role: role === 'default' ? '' : role, project }),
  rotate: (project: string, branch: string, role: readonly string[]) =>
    line(['credentials', 'rotate', branch], { role, project }),
  listRules: (project: string) => line(['rule', 'list'], { project }),
  addRule: (
    project: string,
    cidr: string,
    options: { branch: string | undefined; ttl: string; via: string | undefined },
  ) => line(['rule', 'add', cidr], { ...options, project }),
  removeRule: (project: string, id: string) => line(['rule', 'remove', id], { project }),

  /** @param create a statement that makes the table first; empty: it is there */
  copyCsv: (
    project: string,
    branch: string,
    { schema, name }: { schema: string; name: string },
    create: string,
  ) =>
    line([
      ...['psql', branch, '--project', project, '--'],
      ...(create === '' ? [] : ['-c', create]),
      ...['-c', `\\copy "${schema}"."${name}" from 'file.csv' with (format csv, header)`],
    ]),
  rows: (project: string, branch: string, table: { schema: string; name: string }, shown: ShownRows) =>
    line(['rows', table.name], {
      schema: table.schema === 'public' ? '' : table.schema,
      filter: shown.filters.map(({ column, operator, value }) =>
        [column, operator, ...(value === undefined ? [] : [value])].join(' '),
      ),
      order: shown.order ? `${shown.order.column} ${shown.order.direction}` : '',
      branch,
      project,
    }),
  query: (project: string, branch: string, sql: string, role: BranchRole) =>
    line(['query'], { branch, project, write: role === 'read_write', owner: role === 'owner' }, sql.trim()),
  metrics: (project: string, branch: string) => line(['metrics', branch], { project }),
  usage: (project: string) => line(['usage'], { project }),
  follow: (project: string, table: readonly string[]) =>
    line(['follow'], { from: '@source-url', table: table.length > 0 ? table : undefined, project }),
  import: (project: string, table: readonly string[]) =>
    line(['import'], { from: '@source-url', table: table.length > 0 ? table : undefined, project }),
  followStatus: (project: string) => line(['follow', 'status'], { watch: true, project }),
  cutOver: (project: string, isStopped: boolean) =>
    line(['follow', 'cutover'], { 'writes-stopped': isStopped, project }),
  resumeFollowing: (project: string, appliesChanges: boolean) =>
    line(['follow', 'resume'], { 'apply-changes': appliesChanges, project }),
  stopFollowing: (project: string) => line(['follow', 'stop'], { project }),
  listDrills: (project: string) => line(['drills'], { project }),
  listJobs: (project: string) => line(['job', 'list'], { project }),
  audit: (filter: { name?: string; project: string; actor_type?: ActorType; actor_id?: string }) =>
    line(['audit', 'list'], {
      name: filter.name,
      'actor-type': filter.actor_type,
      'actor-id': filter.actor_id,
      project: filter.project,
    }),

  listKeys: line(['key', 'list']),
  createKey: ({ name, role, isReadOnly, project, pattern, cidrs, days }: NewKey) =>
    line(['key', 'create', name || 'NAME'], {
      role,
      'read-only': isReadOnly,
      'branch-pattern': pattern,
      cidr: cidrs,
      days,
      project,
      'all-projects': project === '',
    }),
  revokeKey: (id: string) => line(['key', 'revoke', id]),
  listGrants: line(['grant', 'list']),
  revokeGrant: (id: string) => line(['grant', 'revoke', id]),
  listTrusts: (project: string) => line(['trust', 'list'], { project }),
  createTrust: (project: { id: string; name: string }, trust: NewTrust, origin: string) => {
    const [service, claim = ''] = TRUSTED_SERVICES[trust.issuer] ?? [];
    const { [claim]: subject, ref, ...others } = trust.claims;
    const isPlain = Object.keys(others).length === 0 && trust.audience === origin;
    if (service === undefined || subject === undefined || !isPlain)
      return line(['api', 'POST', `/api/v1/projects/${project.id}/trusts`], { data: JSON.stringify(trust) });
    return line(['trust', service, subject || 'OWNER/REPOSITORY'], {
      ref,
      role: trust.role,
      'branch-pattern': trust.branch_pattern ?? '',
      project: project.name,
    });
  },
  removeTrust: (project: string, id: string) => line(['trust', 'remove', id], { project }),
};
