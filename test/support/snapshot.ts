import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { canonicalNetwork } from '../../agent/access/networks.ts';
import { RULE_FILES } from '../../agent/servers/configuration.ts';
import { connectOnHost, type HostSocket } from './host/host-session.ts';

/** Where the records and the state of the host are read. */
export interface Sources {
  /** SQLite file of the gateway's D1. */
  d1File: string;
  postgres: HostSocket;
  pooler: HostSocket;
  dataDir: string;
  rulesDir: string;
}

export interface BranchRow {
  id: string;
  project_id: string;
  database_name: string;
  status: string;
}

export interface RuleRow {
  project_id: string;
  branch_id: string | null;
  cidr: string;
}

/** The records of the gateway. */
interface Records {
  projects: {
    id: string;
    status: string;
    storage_state: string;
    access_revision: number;
    access_applied: number;
    host_id: string;
  }[];
  branches: BranchRow[];
  jobs: {
    id: string;
    kind: string;
    status: string;
    project_id: string;
    /** Of a move that has succeeded: the host that the project has left. */
    host_id: string;
    branch_id: string | null;
    /** Of a batch, as JSON. */
    branch_ids?: string | null;
  }[];
  rules: RuleRow[];
  /** Only events that create or delete; `branch_id` is null in those of projects. */
  audit: { name: string; project_id: string; branch_id: string | null }[];
  credentials: { branch_id: string; role: string }[];
  /** Snapshots, and the databases of deleted branches. */
  snapshots: { id: string; project_id: string; branch_id: string; kind: string; status: string }[];
}

/** The state of the database host. */
interface HostState {
  databases: { oid: string; name: string; limit: number; comment: string | null }[];
  /** Logins of branches and groups of projects. */
  roles: string[];
  /** From here on: rows of the agent's tables. */
  branches: { branch_id: string; project_id: string; job_id: string; database: string }[];
  logins: string[];
  projects: { project_id: string; access_revision: number }[];
  rules: RuleRow[];
  snapshots: { snapshot_id: string; project_id: string }[];
  /** Databases of the agent's own snapshots. */
  standing: string[];
  /** What moves need on the host that a project leaves: logins, and slots of branches. */
  ofMoves: string[];
  /** Logins that belong to a network, and the databases to which they may connect. */
  members: { login: string; role: string; database: string }[];
  /** Numeric names below `base/` of the data directory, one per database. */
  directories: string[];
  poolerEntries: { name: string; paused: boolean }[];
  ruleFiles: Record<keyof typeof RULE_FILES, string>;
}

/** Records and host are read in sequence, so they are certain to agree only when no work is in progress. */
export interface Snapshot {
  records: Records;
  host: HostState;
}

export const takeSnapshot = async (sources: Sources): Promise<Snapshot> => ({
  records: readRecords(sources.d1File),
  host: await readHostState(sources),
});

/** Reads the file directly, whether the gateway runs or not. */
export function readRecords(d1File: string): Records {
  const db = new DatabaseSync(d1File, { readOnly: true, timeout: 30_000 });
  const all = <T>(sql: string) => db.prepare(sql).all() as T[];
  try {
    return {
      projects: all(
        'select id, status, storage_state, access_revision, access_applied, host_id from projects',
      ),
      branches: all('select id, project_id, database_name, status from project_branches'),
      jobs: all(
        "select id, kind, status, project_id, host_id, branch_id, input ->> '$.branchIds' as branch_ids from jobs",
      ),
      rules: all("select project_id, branch_id, cidr from network_rules where via <> 'sql'"),
      audit:
        all(`select name, project_id, iif(name like 'branch.%', branch_id, null) as branch_id from audit_events
        where name in ('project.created', 'branch.created', 'branch.deleted', 'project.deleted')`),
      credentials: all('select branch_id, role from branch_credentials'),
      snapshots: all('select id, project_id, branch_id, kind, status from snapshots'),
    };
  } finally {
    db.close();
  }
}

const HOST_STATE = `select
  (select json_agg(json_build_object('oid', oid::text, 'name', datname, 'limit', datconnlimit,
    'comment', shobj_description(oid, 'pg_database'))) from pg_database) as databases,
  -- The login of a comparison that was killed stays until its lease ends.
  (select coalesce(json_agg(rolname), '[]') from pg_roles
   where rolname ~ '^[ug]_' and (rolvaliduntil is null or rolvaliduntil < now())) as roles,
  (select coalesce(json_agg(branch), '[]') from branch) as branches,
  (select coalesce(json_agg(login.login), '[]') from login) as logins,
  (select coalesce(json_agg(project), '[]') from project) as projects,
  (select coalesce(json_agg(network_rule), '[]') from network_rule) as rules,
  (select coalesce(json_agg(snapshot), '[]') from snapshot where kind <> 'standing') as snapshots,
  (select coalesce(json_agg('bgsnap_' || replace(snapshot_id::text, '-', '')), '[]') from snapshot where kind = 'standing') as standing,
  (select coalesce(json_agg(name), '[]') from (select login as name from mover
    union all select slot_name from pg_replication_slots join branch using (database)) as of_moves) as "ofMoves",
  (select coalesce(json_agg(json_build_object('login', login.rolname, 'role', role.rolname, 'database', datname)), '[]')
   from pg_auth_members
   join pg_roles as role on role.oid = roleid and role.rolname ~ '^net_'
   join pg_roles as login on login.oid = member
   join pg_database on datallowconn and has_database_privilege(login.oid, pg_database.oid, 'connect')) as members`;

type Catalog = Omit<HostState, 'directories' | 'poolerEntries' | 'ruleFiles'>;

async function readHostState({ postgres, pooler, dataDir, rulesDir }: Sources): Promise<HostState> {
  const [[catalog], entries, directories, ruleFiles] = await Promise.all([
    onHost<Catalog>(postgres, 'branchgate', HOST_STATE),
    onHost<{ name: string; paused: number }>(pooler, 'pgbouncer', 'SHOW DATABASES'),
    readdir(join(dataDir, 'base')),
    readRuleFiles(rulesDir),
  ]);
  if (!catalog) throw new Error('the catalog gave no row');
  return {
    ...catalog,
    rules: catalog.rules.map((rule) => ({ ...rule, cidr: canonicalNetwork(rule.cidr) })),
    directories: directories.filter((name) => /^\d+$/.test(name)),
    poolerEntries: entries
      .filter(({ name }) => name !== 'pgbouncer')
      .map(({ name, paused }) => ({ name, paused: Number(paused) === 1 })),
    ruleFiles,
  };
}

async function onHost<R extends object>(socket: HostSocket, user: 'branchgate' | 'pgbouncer', sql: string) {
  const client = await connectOnHost(socket, user);
  try {
    return (await client.query(sql)).rows as R[];
  } finally {
    await client.end();
  }
}

async function readRuleFiles(rulesDir: string): Promise<HostState['ruleFiles']> {
  const texts = await Promise.all(
    Object.entries(RULE_FILES).map(async ([name, file]) => [
      name,
      await readFile(join(rulesDir, file), 'utf8'),
    ]),
  );
  return Object.fromEntries(texts) as HostState['ruleFiles'];
}
