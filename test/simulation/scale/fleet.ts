import { randomUUID } from 'node:crypto';
import { exportJWK } from 'jose';
import { type HostIdentity, PrivateKey } from '../../../agent/link/identity.ts';
import { makeHostKey } from '../../support/host/host-key.ts';
import { EMPTY_HOST, type ScriptedHost } from '../../support/host/scripted-inventory.ts';

/** Branches of a project, `main` included. A project may have ten. */
export const BRANCHES_PER_PROJECT = 10;

const ROWS_PER_STATEMENT = 500;
const NOW = Date.parse('2026-01-01T00:00:00Z');
const TENANT = 'tenant-of-the-simulation';

/** One host, with what its agent holds: exactly what is on record. */
export interface FleetHost {
  identity: HostIdentity;
  holds: ScriptedHost;
}

type Row = Record<string, string | number | null>;

/**
 * The records of a fleet, written as they are after a year of work: three credentials and a job of each
 * branch, its audit.
 */
export async function makeFleet(
  database: D1Database,
  { hosts, branches }: { hosts: number; branches: number },
): Promise<FleetHost[]> {
  const userId = randomUUID();
  const user = {
    id: userId,
    issuer: 'i',
    gid: 'g',
    email: 'ada@example.com',
    role: 'owner',
    tenant_id: TENANT,
  };
  await insert(database, 'users', [{ ...user, tenant_seen_at: NOW, created_at: NOW, updated_at: NOW }]);
  const projectsPerHost = Math.ceil(branches / hosts / BRANCHES_PER_PROJECT);
  const fleet: FleetHost[] = [];
  for (let n = 0; n < hosts; n++) fleet.push(await makeHost(database, `host-${n}`, projectsPerHost, userId));
  // A trigger has recorded an event of each; published ones are removed.
  await database.prepare('delete from event_outbox').run();
  return fleet;
}

async function makeHost(
  database: D1Database,
  name: string,
  projects: number,
  userId: string,
): Promise<FleetHost> {
  const hostId = randomUUID();
  const { publicKey, privateKey } = await makeHostKey();
  const rows: Record<string, Row[]> = {
    hosts: [hostRow(hostId, name, JSON.stringify(publicKey))],
    projects: [],
    project_branches: [],
    branch_credentials: [],
    jobs: [],
    audit_events: [],
    network_rules: [],
  };
  const holds: ScriptedHost = { ...EMPTY_HOST, projects: [], branches: [] };
  for (let n = 0; n < projects; n++) {
    const projectId = randomUUID();
    const about = { project_id: projectId, tenant_id: TENANT, created_by: userId, created_at: NOW };
    rows.projects?.push(projectRow(projectId, `${name}-${n}`, hostId, userId));
    rows.network_rules?.push({
      id: randomUUID(),
      ...about,
      cidr: '203.0.113.7',
      source: 'user',
      revision: 1,
    });
    holds.projects.push({ project_id: projectId, access_revision: 1 });
    for (let b = 0; b < BRANCHES_PER_PROJECT; b++) {
      const branchId = randomUUID();
      const database_name = `db_${name.replace('-', '_')}_${n}_${b}`;
      rows.project_branches?.push(branchRow({ id: branchId, ...about }, `branch-${b}`, database_name));
      for (const role of ['owner', 'read_write', 'read_only'])
        rows.branch_credentials?.push({
          branch_id: branchId,
          role,
          key_id: 'k1',
          sealed_password: 'x'.repeat(88),
          updated_at: NOW,
        });
      rows.jobs?.push(jobRow({ ...about, branch_id: branchId }, hostId));
      for (const event of ['branch.created', 'branch.credentials.viewed', 'branch.expiry_changed'])
        rows.audit_events?.push(auditRow(event, { ...about, branch_id: branchId }));
      holds.branches.push({
        project_id: projectId,
        branch_id: branchId,
        database: database_name,
        state: 'ready',
        made_by: null,
      });
    }
  }
  for (const [table, values] of Object.entries(rows)) await insert(database, table, values);
  const identity = { host_id: hostId, private_key: PrivateKey.parse(await exportJWK(privateKey)) };
  return { identity, holds };
}

const hostRow = (id: string, name: string, public_key: string): Row => ({
  id,
  name,
  public_key,
  db_host: `${name}.example.com`,
  direct_port: 5432,
  pooled_port: 6432,
  enrolled_at: NOW,
  created_at: NOW,
});

const projectRow = (id: string, name: string, host_id: string, created_by: string): Row => ({
  id,
  name,
  app_key: name.replaceAll('-', '_'),
  env: 'prod',
  status: 'active',
  host_id,
  created_by,
  tenant_id: TENANT,
  access_revision: 1,
  access_applied: 1,
  created_at: NOW,
  updated_at: NOW,
});

const branchRow = (about: Row, branch_name: string, database_name: string): Row => ({
  ...about,
  branch_name,
  database_name,
  source_database: database_name,
  status: 'active',
  lifespan: 'permanent',
  is_default: branch_name === 'branch-0' ? 1 : 0,
  updated_at: NOW,
});

const jobRow = ({ created_by = null, ...about }: Row, host_id: string): Row => ({
  id: randomUUID(),
  ...about,
  host_id,
  created_by,
  kind: 'branch.create',
  status: 'succeeded',
  updated_at: NOW,
  input: JSON.stringify({
    actor: { userId: created_by, email: 'ada@example.com', tenantId: TENANT, ip: '203.0.113.7' },
  }),
  steps: JSON.stringify(
    ['prepare', 'clone', 'publish', 'prove'].map((name) => ({ name, status: 'succeeded', started_at: NOW })),
  ),
});

const auditRow = (name: string, { created_by, ...about }: Row): Row => ({
  id: randomUUID(),
  name,
  ...about,
  actor_id: created_by ?? null,
  actor_email: 'ada@example.com',
  ip: '203.0.113.7',
  user_agent: 'a browser of the usual length, with its versions',
  request_id: randomUUID(),
  metadata: JSON.stringify({ branch_name: 'branch-1', database: 'db_host_1_1_1' }),
});

async function insert(database: D1Database, table: string, rows: Row[]): Promise<void> {
  const columns = Object.keys(rows[0] ?? {});
  const values = columns.map((column) => `json_extract(value, '$.${column}')`);
  const text = `insert into ${table} (${columns}) select ${values} from json_each(?)`;
  for (let from = 0; from < rows.length; from += ROWS_PER_STATEMENT)
    await database
      .prepare(text)
      .bind(JSON.stringify(rows.slice(from, from + ROWS_PER_STATEMENT)))
      .run();
}
