import type { ActorType } from '../../shared/actor-types.ts';

/** Lifespans as the command line has them for a new branch; a week is its default. */
const DURATIONS: Record<string, string> = { '1m': ' --ttl 30d', '6m': ' --ttl 183d', '1y': ' --ttl 365d' };

/** A word of a shell, whatever is in it. */
const word = (text: string) => (/^[\w.,:/@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** An option with its value; nothing without one. */
const option = (name: string, value: string | undefined) =>
  value === undefined || value === '' ? '' : ` --${name} ${word(value)}`;

/** The lines of the command line tool. */
export const COMMANDS = {
  listProjects: 'branchgate project list',
  createProject: (name: string) => `branchgate project create "${name || 'NAME'}"`,
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
  restoreBranch: (project: string, name: string, as: string) =>
    `branchgate branch restore ${name}${as === name || as === '' ? '' : ` --name ${as}`} --project ${project}`,
  listSnapshots: (project: string) => `branchgate snapshot list --project ${project}`,
  takeSnapshot: (project: string, branch: string, name: string, seconds: string) =>
    `branchgate snapshot create ${branch}${name === '' ? '' : ` --name "${name}"`}${seconds === '' ? '' : ` --ttl ${seconds}s`} --project ${project}`,
  deleteSnapshot: (project: string, id: string) => `branchgate snapshot delete ${id} --project ${project}`,
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
  listTrusts: (project: string) => `branchgate trust list --project ${project}`,
  deleteProject: (project: string) => `branchgate project delete ${project}`,
  updateProject: (project: string) => `branchgate project update ${project} --name NAME`,
};
