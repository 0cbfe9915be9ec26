import { randomUUID } from 'node:crypto';
import pg from 'pg';
import type { Host } from '../../../agent/host/host.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { BRANCH_ROLES, type BranchRole, loginName } from '../../../shared/branch/login.ts';
import type { Params } from '../../../shared/protocol/operations.ts';
import { startHost, type TestHost } from './host.ts';

export type Identity = Omit<Params<'branch.drop'>, 'made_by'>;
type Access = Params<'access.apply'>['access'];
export type Rule = Access['rules'][number];

export const BUSY_WAIT_MS = 20_000;

/** A branch with the passwords that its client has. */
export interface Branch extends Identity {
  passwords: Record<BranchRole, string>;
}

/** Makes the calls of the edge for one project, as its jobs do. */
export class Project {
  readonly id: string;
  readonly #host: Host;
  readonly #rules: Rule[];
  revision = 1;
  /** The project's access apart from its rules. */
  restrictions: Pick<Partial<Access>, 'write_blocked' | 'closed'> = {};
  /** Extensions that its empty databases get. */
  extensions: string[] = [];

  constructor(
    host: Host,
    rules: Rule[] = [{ branch_id: null, cidr: '127.0.0.1/32' }],
    id: string = randomUUID(),
  ) {
    this.id = id;
    this.#host = host;
    this.#rules = rules;
  }

  plan(database: string): Branch {
    const password = () => makePassword();
    return {
      job_id: randomUUID(),
      project_id: this.id,
      branch_id: randomUUID(),
      database,
      passwords: { owner: password(), read_write: password(), read_only: password() },
    };
  }

  async prepare(branch: Branch) {
    const [owner, read_write, read_only] = await Promise.all(
      BRANCH_ROLES.map((role) => scramVerifier(branch.passwords[role])),
    );
    return runOperation(this.#host, 'branch.prepare', {
      ...newBranch(branch, { verifiers: { owner, read_write, read_only } }),
      access: { revision: this.revision, tenant: this.id, rules: this.#rules, ...this.restrictions },
    });
  }

  clone = (branch: Branch, source: string | null, busyWait = BUSY_WAIT_MS) =>
    runOperation(this.#host, 'branch.clone', {
      ...newBranch(branch),
      source,
      ...(source === null && this.extensions.length > 0 && { extensions: this.extensions }),
      busy_wait: busyWait,
    });

  finalize = (branch: Branch) => runOperation(this.#host, 'branch.finalize', newBranch(branch));

  prove = (branch: Branch) =>
    runOperation(this.#host, 'branch.prove', newBranch(branch, { password: branch.passwords.read_write }));

  drop = (branch: Branch) =>
    runOperation(this.#host, 'branch.drop', { ...identity(branch), job_id: randomUUID(), made_by: null });

  /** Drops the project with all of its databases. */
  remove = () => runOperation(this.#host, 'project.drop', { job_id: randomUUID(), project_id: this.id });

  /** All steps of a creation. The first two run concurrently, as the edge runs them. */
  async create(
    database: string,
    source: string | null,
  ): Promise<Branch & { clone: Awaited<ReturnType<Project['clone']>> }> {
    const branch = this.plan(database);
    const [, clone] = await Promise.all([this.prepare(branch), this.clone(branch, source)]);
    await this.finalize(branch);
    await this.prove(branch);
    return { ...branch, clone };
  }
}

export const identity = ({ job_id, project_id, branch_id, database }: Identity): Identity => ({
  job_id,
  project_id,
  branch_id,
  database,
});

/** The parameters of a step that creates one branch, as the job of a single branch sends them. */
export const newBranch = ({ job_id, project_id, branch_id, database }: Identity, member: object = {}) => ({
  job_id,
  project_id,
  branches: [{ branch_id, database, build_id: job_id, ...member }],
});

/** An operation's parameters as arguments of the control tool. */
export const toolOptions = (params: Record<string, unknown>): string[] =>
  Object.entries(params).flatMap(([name, value]) => [
    `--${name.replaceAll('_', '-')}`,
    typeof value === 'object' ? JSON.stringify(value) : String(value),
  ]);

export interface HostWithProject {
  servers: TestHost;
  project: Project;
  main: Branch;
}

/** A new project of the host. Its owner has run `sql` in `main`. */
export async function makeProject(
  servers: TestHost,
  database: string,
  sql: string,
): Promise<HostWithProject> {
  const project = new Project(servers.host);
  const main = await project.create(database, null);
  await asClient(servers.host, 'direct', main, 'owner', sql);
  return { servers, project, main };
}

/** A host with one project. Its owner has run `sql` in `main`. */
export const startHostWithProject = async (database: string, sql: string): Promise<HostWithProject> =>
  makeProject(await startHost(), database, sql);

/** Drops all projects of the host, for the next file that uses it. */
export async function removeProjects({ host }: TestHost): Promise<void> {
  const { projects } = await runOperation(host, 'host.inventory', {});
  for (const { project_id } of projects)
    await runOperation(host, 'project.drop', { job_id: randomUUID(), project_id });
}

/** Names of the databases of branches and clones, finalized or not. */
export async function branchDatabases({ query }: TestHost): Promise<string[]> {
  const rows = await query<{ datname: string }>(
    "SELECT datname FROM pg_database WHERE datname ~ '^(db|bgjob)_' ORDER BY 1",
  );
  return rows.map(({ datname }) => datname);
}

/** The port through which a client connects to a branch. */
export type Port = 'direct' | 'pooled';

/** A client that connects to the branch over TLS. The caller ends it. */
export async function connect(
  { settings }: Host,
  port: Port,
  branch: Branch,
  role: BranchRole,
  database = branch.database,
  tls = true,
): Promise<pg.Client> {
  const client = new pg.Client({
    host: '127.0.0.1',
    port: port === 'direct' ? settings.POSTGRES_PORT : settings.POOLER_PORT,
    user: loginName(branch.branch_id, role),
    password: branch.passwords[role],
    database,
    ssl: tls && { rejectUnauthorized: false },
    connectionTimeoutMillis: 60_000,
  });
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** Runs one statement as a client of the branch. */
export async function asClient<Row extends pg.QueryResultRow>(
  host: Host,
  port: Port,
  branch: Branch,
  role: BranchRole,
  sql: string,
): Promise<Row[]> {
  const client = await connect(host, port, branch, role);
  try {
    return (await client.query<Row>(sql)).rows;
  } finally {
    await client.end();
  }
}
