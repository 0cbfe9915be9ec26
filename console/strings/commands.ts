import type { ActorType } from '../../shared/actor-types.ts';

/** Lifespans as the command line has them for a new branch; a week is its default. */
const DURATIONS: Record<string, string> = { '1m': ' --ttl 30d', '6m': ' --ttl 183d', '1y': ' --ttl 365d' };

/** A word of a shell, whatever is in it. */
const word = (text: string) => (/^[\w.,:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** An option with its value; nothing without one. */
const option = (name: string, value: string | undefined) =>
  value === undefined || value === '' ? '' : ` --${name} ${word(value)}`;

interface NewTrust {
  issuer: string;
  audience: string;
  claims: Record<string, string>;
  role: string;
  branch_pattern: string | null;
}

/** The services with a command of their own, by their issuer, and the claim that names a repository. */
const TRUSTED_SERVICES: Record<string, readonly [string, string]> = {
  'https://token.actions.githubusercontent.com': ['github', 'repository'],
  'https://gitlab.com': ['gitlab', 'project_path'],
};

/** The lines of the command line tool. */
export const COMMANDS = {
  listProjects: 'branchgate project list',
  createProject: (name: string) => `branchgate project create ${word(name || 'NAME')}`,
  listBranches: (project: string) => `branchgate branch list --project ${project}`,
  createBranch: (wanted: {
    projectId: string;
    name: string;
    source: string;
    isSnapshot: boolean;
    lifespan: string;
    allow: readonly string[];
  }) =>
    [
      `branchgate branch create ${wanted.name || 'NAME'} --project ${wanted.projectId}`,
      wanted.isSnapshot
        ? ` --snapshot ${wanted.source}`
        : wanted.source === 'main'
          ? ''
          : ` --from ${wanted.source}`,
      DURATIONS[wanted.lifespan] ?? '',
      ...wanted.allow.map((network) => ` --allow ${network}`),
      wanted.lifespan === 'forever'
        ? ` && branchgate branch extend ${wanted.name || 'NAME'} --lifespan forever --project ${wanted.projectId}`
        : '',
    ].join(''),
  deleteBranch: (project: string, names: readonly string[], purge: boolean) =>
    `branchgate branch delete ${names.join(' ')}${purge ? ' --purge' : ''} --project ${project}`,
  resetBranch: (project: string, name: string, to: string, isGuarded: boolean) =>
    `branchgate branch reset ${name}${to === 'parent' ? '' : ` --to ${to}`}${isGuarded ? ` --confirm ${name}` : ''} --project ${project}`,
  protectBranch: (project: string, name: string, isProtected: boolean) =>
    `branchgate branch ${isProtected ? 'protect' : 'unprotect'} ${name} --project ${project}`,
  restoreBranch: (project: string, name: string, as: string) =>
    `branchgate branch restore ${name}${as === name || as === '' ? '' : ` --name ${as}`} --project ${project}`,
  listSnapshots: (project: string) => `branchgate snapshot list --project ${project}`,
  takeSnapshot: (project: string, branch: string, name: string, seconds: string) =>
    `branchgate snapshot create ${branch}${option('name', name)}${seconds === '' ? '' : ` --ttl ${seconds}s`} --project ${project}`,
  deleteSnapshot: (project: string, id: string) => `branchgate snapshot delete ${id} --project ${project}`,
  scheduleSnapshots: (project: string, every: string, keep: string) =>
    every === ''
      ? `branchgate project update ${project} --snapshot-every never`
      : `branchgate project update ${project} --snapshot-every ${every} --snapshot-keep ${keep}`,
  difference: (project: string, branch: string, against: string, part: string) =>
    `branchgate branch diff ${branch}${against === 'parent' ? '' : ` --against ${against}`}${part === 'schema' ? ' --schema' : ''} --project ${project}`,
  listDeleted: (project: string) => `branchgate branch list --status deleted --project ${project}`,
  purgeBranch: (project: string, id: string, name: string) =>
    `branchgate api DELETE "/api/v1/projects/${project}/branches/${id}?purge=true&confirm=${name}"`,
  listProjectMembers: (project: string) => `branchgate api GET /api/v1/projects/${project}/members`,
  extendBranch: (project: string, names: readonly string[], lifespan: string) =>
    names
      .map((name) => `branchgate branch extend ${name} --lifespan ${lifespan} --project ${project}`)
      .join(' && '),
  connectionString: (project: string, branch: string, role: string) =>
    `branchgate connection-string ${branch}${role === 'default' ? '' : ` --role ${role}`} --project ${project}`,
  rotate: (project: string, branch: string, roles: readonly string[]) =>
    `branchgate credentials rotate ${branch}${roles.map((role) => ` --role ${role}`).join('')} --project ${project}`,
  listRules: (project: string) => `branchgate rule list --project ${project}`,
  addRule: (project: string, cidr: string, branch: string | undefined, life: string) =>
    `branchgate rule add ${cidr}${branch === undefined ? '' : ` --branch ${branch}`}${life === '' ? '' : ` --ttl ${life}`} --project ${project}`,
  removeRule: (project: string, id: string) => `branchgate rule remove ${id} --project ${project}`,
  usage: (project: string) => `branchgate usage --project ${project}`,
  listJobs: (project: string) => `branchgate job list --project ${project}`,
  rows: (
    project: string,
    branch: string,
    { schema, name }: { schema: string; name: string },
    {
      filters,
      order,
    }: {
      filters: readonly { column: string; operator: string; value?: string }[];
      order: { column: string; direction: string } | null;
    },
  ) =>
    [
      `branchgate rows ${word(name)}`,
      option('schema', schema === 'public' ? '' : schema),
      ...filters.map(({ column, operator, value }) =>
        option('filter', [column, operator, ...(value === undefined ? [] : [value])].join(' ')),
      ),
      option('order', order ? `${order.column} ${order.direction}` : ''),
      ` --branch ${branch} --project ${project}`,
    ].join(''),
  query: (project: string, branch: string, sql: string, mayWrite: boolean) =>
    // A comment begins like an option.
    `branchgate query --branch ${branch} --project ${project}${mayWrite ? ' --write' : ''} -- ${word(sql.trim())}`,
  metrics: (project: string, branch: string) => `branchgate metrics ${branch} --project ${project}`,
  audit: (filter: { name?: string; project_id?: string; actor_type?: ActorType; actor_id?: string }) =>
    [
      'branchgate audit list',
      option('name', filter.name),
      option('actor-type', filter.actor_type),
      option('actor-id', filter.actor_id),
      option('project', filter.project_id),
    ].join(''),
  listKeys: 'branchgate key list',
  createKey: (wanted: {
    name: string;
    role: string;
    isReadOnly: boolean;
    projectId: string;
    pattern: string;
    cidrs: readonly string[];
    days: string;
  }) =>
    [
      `branchgate key create ${word(wanted.name || 'NAME')}`,
      option('role', wanted.role),
      wanted.isReadOnly ? ' --read-only' : '',
      option('branch-pattern', wanted.pattern),
      ...wanted.cidrs.map((cidr) => option('cidr', cidr)),
      option('days', wanted.days),
      option('project', wanted.projectId),
    ].join(''),
  revokeKey: (id: string) => `branchgate key revoke ${id}`,
  listTrusts: (project: string) => `branchgate trust list --project ${project}`,
  createTrust: (project: string, trust: NewTrust, origin: string) => {
    const [service, claim = ''] = TRUSTED_SERVICES[trust.issuer] ?? [];
    const { [claim]: subject, ref, ...others } = trust.claims;
    const isPlain = Object.keys(others).length === 0 && trust.audience === origin;
    if (service === undefined || subject === undefined || !isPlain)
      return `branchgate api POST /api/v1/projects/${project}/trusts --data ${word(JSON.stringify(trust))}`;
    return [
      `branchgate trust ${service} ${word(subject || 'OWNER/REPOSITORY')}`,
      option('ref', ref),
      option('role', trust.role),
      option('branch-pattern', trust.branch_pattern ?? ''),
      ` --project ${project}`,
    ].join('');
  },
  removeTrust: (project: string, id: string) => `branchgate trust remove ${id} --project ${project}`,
  deleteProject: (project: string) => `branchgate project delete ${project}`,
  updateProject: (project: string, name: string, quota: string) =>
    `branchgate project update ${project}${option('name', name)}${option('quota', quota)}`,
};
