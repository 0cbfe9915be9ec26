import { snapshotDatabaseName } from '../../../shared/branch/database-name.ts';
import {
  BRANCH_ROLES,
  type BranchRole,
  branchOfLogin,
  groupName,
  loginName,
  queryLoginName,
} from '../../../shared/branch/login.ts';
import type { BranchRow, RuleRow, Snapshot } from '../snapshot.ts';

/** Databases that are nobody's branch. */
const PLATFORM_DATABASES = ['branchgate', 'postgres', 'template0', 'template1'];
/** The agent's default for `BRANCH_CONNECTIONS`. */
const CONNECTIONS = 60;

/** The event that each kind of job leaves behind, and what it is about. */
const EVENT_OF_JOB: Record<string, { name: string; subject: 'project_id' | 'branch_id' }> = {
  'project.create': { name: 'project.created', subject: 'project_id' },
  'branch.create': { name: 'branch.created', subject: 'branch_id' },
  'branch.delete': { name: 'branch.deleted', subject: 'branch_id' },
  'project.delete': { name: 'project.deleted', subject: 'project_id' },
};

const living = ({ records }: Snapshot) => records.branches.filter(({ status }) => status === 'active');
/** Nobody can log in to a project that is far over its storage quota. */
const open = (picture: Snapshot) => {
  const closed = picture.records.projects.filter(({ storage_state }) => storage_state === 'closed');
  const ids = new Set(closed.map(({ id }) => id));
  return living(picture).filter(({ project_id }) => !ids.has(project_id));
};
const databasesOf = (picture: Snapshot) => living(picture).map(({ database_name }) => database_name);
const loginsOf = (branches: BranchRow[]) =>
  branches.flatMap(({ id }) => BRANCH_ROLES.map((role) => loginName(id, role)));
/** Those on the host: the query logins are in no record. */
const hostedLoginsOf = (branches: BranchRow[]) => [
  ...loginsOf(branches),
  ...branches.map(({ id }) => queryLoginName(id)),
];
const snapshotDatabases = ({ records }: Snapshot) =>
  records.snapshots.map(({ id }) => snapshotDatabaseName(id));
/** Of deleted branches that can be restored. */
const keptLogins = ({ records }: Snapshot) =>
  records.snapshots
    .filter(({ kind }) => kind === 'deleted')
    .flatMap(({ branch_id }) => BRANCH_ROLES.map((role) => loginName(branch_id, role)));
const marksOf = (picture: Snapshot) =>
  living(picture).map((branch) => mark(branch.database_name, branch.id, branch.project_id));

const mark = (database: string, branchId = 'none', projectId = 'none') =>
  `${database} of branch ${branchId}, project ${projectId}`;
const ruleText = ({ project_id, branch_id, cidr }: RuleRow) => `${cidr} for ${branch_id ?? project_id}`;

/** Who may come in from where, as the records want it. */
const admissions = (picture: Snapshot) =>
  open(picture).flatMap((branch) =>
    BRANCH_ROLES.flatMap((role) =>
      [...networksOf(picture, branch)].map(
        (cidr) => `${loginName(branch.id, role)} to ${branch.database_name} from ${cidr}`,
      ),
    ),
  );

const networksOf = ({ records }: Snapshot, { id, project_id }: BranchRow) =>
  new Set(
    records.rules
      .filter((rule) => rule.project_id === project_id && (rule.branch_id ?? id) === id)
      .map(({ cidr }) => cidr),
  );

/** The same, as the members of PostgreSQL's networks and its rule file have it. */
const admittedDirect = ({ host }: Snapshot) =>
  [...host.ruleFiles.postgresHba.matchAll(/^hostssl (\S+) (\S+) (\S+) scram-sha-256$/gm)].flatMap(
    ([, database, who, cidr]) => {
      // The login of a standby, which no database admits.
      if (database === 'replication' && who?.startsWith('"standby_')) return [];
      const members = host.members.filter(({ role }) => who === `+${role}` && database === '/^db_');
      return members.length > 0 || /^\+net_/.test(who ?? '')
        ? members.map((member) => `${member.login} to ${member.database} from ${cidr}`)
        : [`${who} to ${database} from ${cidr}`];
    },
  );

/** The same, as the pooler's rule file has it. */
const admitted = (ruleFile: string) =>
  [...ruleFile.matchAll(/^hostssl "([^"]+)" (\S+) (\S+) scram-sha-256$/gm)].flatMap(
    ([, database, logins = '', cidr]) =>
      logins.split(',').map((login) => `${login.slice(1, -1)} to ${database} from ${cidr}`),
  );

/**
 * What has to agree once everything is at rest: one record and one database, or neither, and nothing around
 * either of them too much or too little.
 */
const AGREEMENTS: Record<string, (picture: Snapshot) => { wanted: string[]; found: string[] }> = {
  'open jobs': ({ records }) => ({
    wanted: [],
    found: records.jobs
      .filter(({ status }) => status !== 'succeeded' && status !== 'failed')
      .map(({ kind, id }) => `${kind} ${id}`),
  }),
  'records in between': ({ records }) => ({
    wanted: [],
    found: [
      ...records.branches.filter(({ status }) => status !== 'active' && status !== 'deleted'),
      ...records.projects.filter(({ status }) => status !== 'active'),
      ...records.snapshots.filter(({ status }) => status !== 'ready'),
    ].map(({ id, status }) => `${status} ${id}`),
  }),
  databases: (picture) => ({
    wanted: [...PLATFORM_DATABASES, ...databasesOf(picture), ...snapshotDatabases(picture)],
    // The agent makes and drops spares and standing snapshots on its own.
    found: picture.host.databases
      .map(({ name }) => name)
      .filter((name) => !name.startsWith('bgspare_') && !picture.host.standing.includes(name)),
  }),
  // An unfinished clone takes no connections (0), a half-dropped one never will again (-2), and without a
  // limit (-1) a branch could take all connections of the host.
  'databases that can be used': (picture) => ({
    wanted: marksOf(picture),
    found: picture.host.databases
      .filter(({ name, limit }) => !PLATFORM_DATABASES.includes(name) && limit === CONNECTIONS)
      .map(({ name, comment }) => {
        const { branch_id, project_id } = JSON.parse(comment ?? '{}') as Record<string, string>;
        return mark(name, branch_id, project_id);
      }),
  }),
  'directories below base/': ({ host }) => ({
    wanted: host.databases.map(({ oid }) => oid),
    found: host.directories,
  }),
  logins: (picture) => ({
    wanted: hostedLoginsOf(living(picture)),
    // The session of a new spare has a login of its own for a moment.
    found: picture.host.roles.filter(
      (role) =>
        role.startsWith('u_') &&
        !picture.host.databases.some(({ name }) => name === `bgspare_${role.slice(2, 34)}`),
    ),
  }),
  'group roles': ({ records, host }) => ({
    wanted: records.projects.flatMap(({ id }) => BRANCH_ROLES.map((role) => groupName(id, role))),
    found: host.roles.filter((role) => role.startsWith('g_')),
  }),
  'pooler entries': (picture) => ({
    wanted: open(picture).map(({ database_name }) => database_name),
    found: picture.host.poolerEntries.map(({ name, paused }) => (paused ? `${name}, paused` : name)),
  }),
  'pooler users': (picture) => ({
    wanted: loginsOf(open(picture)),
    found: [...picture.host.ruleFiles.poolerUsers.matchAll(/^"([^"]+)"/gm)].map(([, login]) => String(login)),
  }),
  'rules of the direct port': (picture) => ({
    wanted: admissions(picture),
    found: admittedDirect(picture),
  }),
  'rules of the pooled port': (picture) => ({
    wanted: admissions(picture),
    found: admitted(picture.host.ruleFiles.poolerHba),
  }),
  "branches in the agent's tables": (picture) => ({
    wanted: marksOf(picture),
    found: picture.host.branches.map((row) => mark(row.database, row.branch_id, row.project_id)),
  }),
  "logins in the agent's tables": (picture) => ({
    wanted: hostedLoginsOf(living(picture)),
    found: picture.host.logins,
  }),
  "snapshots in the agent's tables": ({ records, host }) => ({
    wanted: records.snapshots.map(({ id }) => id),
    found: host.snapshots.map(({ snapshot_id }) => snapshot_id),
  }),
  'what moves need': ({ host }) => ({ wanted: [], found: host.ofMoves }),
  "rules in the agent's tables": ({ records, host }) => ({
    wanted: records.rules.map(ruleText),
    found: host.rules.map(ruleText),
  }),
  "projects in the agent's tables": ({ records, host }) => ({
    wanted: records.projects.map((row) => `${row.id}, rules at revision ${row.access_revision}`),
    found: host.projects.map((row) => `${row.project_id}, rules at revision ${row.access_revision}`),
  }),
  'rules still to be applied': ({ records }) => ({
    wanted: [],
    found: records.projects
      .filter(({ access_applied, access_revision }) => access_applied < access_revision)
      .map(({ id }) => id),
  }),
  'sealed passwords': (picture) => ({
    wanted: [...loginsOf(living(picture)), ...keptLogins(picture)],
    found: picture.records.credentials.map((row) => loginName(row.branch_id, row.role as BranchRole)),
  }),
  // What was made or deleted has one event, whatever number of jobs and attempts had a hand in it.
  'audit events': ({ records }) => ({
    wanted: [
      ...new Set(
        records.jobs.flatMap((job) => {
          const event = EVENT_OF_JOB[job.kind];
          if (!event || job.status !== 'succeeded') return [];
          const subjects = job.branch_ids ? (JSON.parse(job.branch_ids) as string[]) : [job[event.subject]];
          // A branch that was restored can be deleted again.
          const again = job.kind === 'branch.delete' ? ` ${job.id}` : '';
          return subjects.map((subject) => `${event.name} ${subject}${again}`);
        }),
      ),
    ].map((text) => text.split(' ').slice(0, 2).join(' ')),
    found: records.audit.map(({ name, project_id, branch_id }) => `${name} ${branch_id ?? project_id}`),
  }),
};

/**
 * What one host of several has to agree with: the records of its projects, and what it holds without the databases of the projects
 * that have moved away. It keeps those for a day, and nobody can log in to them: nothing of theirs is left out of the rules and of
 * the pooler.
 */
export function ofHost({ records, host }: Snapshot, hostId: string): Snapshot {
  const hostOf = new Map(records.projects.map(({ id, host_id }) => [id, host_id]));
  const isHere = ({ project_id }: { project_id: string }) => hostOf.get(project_id) === hostId;
  const here = new Set(records.branches.filter(isHere).map(({ id }) => id));
  const left = records.jobs.filter(
    ({ kind, status, project_id, host_id }) =>
      kind === 'project.move' && status === 'succeeded' && host_id === hostId && hostOf.has(project_id),
  );
  const kept = new Set(left.filter((job) => !isHere(job)).map(({ project_id }) => project_id));
  const isNotKept = ({ project_id }: { project_id: string }) => !kept.has(project_id);
  const keptBranches = host.branches.filter((row) => !isNotKept(row));
  const keptIds = new Set(keptBranches.map(({ branch_id }) => branch_id));
  const keptGroups = [...kept].flatMap((id) => BRANCH_ROLES.map((role) => groupName(id, role)));
  const keptDatabases = new Set([
    ...keptBranches.map(({ database }) => database),
    ...host.snapshots
      .filter((row) => !isNotKept(row))
      .map(({ snapshot_id }) => snapshotDatabaseName(snapshot_id)),
  ]);
  const isOther = (login: string) => !keptGroups.includes(login) && !keptIds.has(branchOfLogin(login));
  const keptOids = host.databases.filter(({ name }) => keptDatabases.has(name)).map(({ oid }) => oid);
  return {
    records: {
      ...records,
      projects: records.projects.filter(({ host_id }) => host_id === hostId),
      branches: records.branches.filter(isHere),
      rules: records.rules.filter(isHere),
      snapshots: records.snapshots.filter(isHere),
      credentials: records.credentials.filter(({ branch_id }) => here.has(branch_id)),
    },
    host: {
      ...host,
      databases: host.databases.filter(({ name }) => !keptDatabases.has(name)),
      directories: host.directories.filter((oid) => !keptOids.includes(oid)),
      roles: host.roles.filter(isOther),
      logins: host.logins.filter(isOther),
      branches: host.branches.filter(isNotKept),
      projects: host.projects.filter(isNotKept),
      rules: host.rules.filter(isNotKept),
      snapshots: host.snapshots.filter(isNotKept),
    },
  };
}

/** Every disagreement, in words; none when all is well. */
export const violations = (picture: Snapshot): string[] =>
  Object.entries(AGREEMENTS).flatMap(([what, compare]) => {
    const { wanted, found } = compare(picture);
    return [
      ...without(wanted, found).map((item) => `${what}: ${item} is missing`),
      ...without(found, wanted).map((item) => `${what}: ${item} is too much`),
    ];
  });

/** What is left of `items` when each of `others` has taken an equal one away. */
function without(items: string[], others: string[]): string[] {
  const counts = new Map<string, number>();
  for (const other of others) counts.set(other, (counts.get(other) ?? 0) + 1);
  return items.filter((item) => {
    const count = counts.get(item) ?? 0;
    if (count > 0) counts.set(item, count - 1);
    return count === 0;
  });
}
