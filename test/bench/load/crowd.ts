import { Api } from '../../support/api.ts';
import { fillLedger, Load } from '../../support/load.ts';
import type { Stack } from '../../support/stack/stack.ts';
import { runReader, runWriter } from './api-client.ts';
import { jobSucceeds, runBrancher } from './branching.ts';
import type { CallLog } from './call-log.ts';
import { Client } from './client.ts';

const TENANTS = 5;
export const PROJECTS = 10;
const POOLED_EACH = 20;
export const POOLED_CLIENTS = PROJECTS * POOLED_EACH;

interface ClientCounts {
  readers: number;
  writers: number;
  /** Pause between two calls, on average. */
  pauseMs: number;
}
/** More than a project's limits admit on any machine. */
const CROWDED: ClientCounts = { readers: 14, writers: 14, pauseMs: 0 };
const OTHER: ClientCounts = { readers: 6, writers: 2, pauseMs: 1_000 };
const clientsOf = (project: number) => (project === 0 ? CROWDED : OTHER);
export const API_CLIENTS = Array.from({ length: PROJECTS }, (_, n) => clientsOf(n)).reduce(
  (sum, { readers, writers }) => sum + readers + writers,
  0,
);

const LEDGER_MB = 2;
/** Pause between two transactions of a client, on average. */
const PAUSE_MS = 1_000;

interface BusyProject {
  projectId: string;
  tenant: string;
  pooledUrl: string;
}

/** All concurrent clients of the service. */
export class Crowd {
  readonly #stack: Stack;
  readonly #log: CallLog;
  readonly #projects: BusyProject[];
  /** The pooled clients of each project. */
  readonly loads: Load[] = [];
  #users = 0;

  private constructor(stack: Stack, log: CallLog, projects: BusyProject[]) {
    this.#stack = stack;
    this.#log = log;
    this.#projects = projects;
  }

  /** Creates the projects and connects the pooled clients, which start immediately. */
  static async start(stack: Stack, log: CallLog): Promise<Crowd> {
    const projects: BusyProject[] = [];
    for (let n = 0; n < PROJECTS; n++) projects.push(await createProject(stack, n));
    const crowd = new Crowd(stack, log, projects);
    for (const { pooledUrl } of projects)
      crowd.loads.push(await Load.start(pooledUrl, POOLED_EACH, PAUSE_MS));
    // The proof of a branch created meanwhile would use a pooler connection that one of them needs.
    await Promise.all(crowd.loads.map(({ connected }) => connected));
    return crowd;
  }

  /** Calls the API and creates branches, until the end. */
  async run(ending: AbortSignal): Promise<void> {
    await Promise.all(this.#projects.map((project, n) => this.#runProject(project, n, ending)));
  }

  /** Disconnects the pooled clients and deletes every project. */
  async stop(signal: AbortSignal): Promise<void> {
    await Promise.all(this.loads.map((load) => load.stop()));
    await Promise.all(
      this.#projects.map(async (project) => {
        const owner = await this.#client(project, 'owner', signal);
        const removed = await owner.request<{ id: string }>({
          method: 'DELETE',
          path: `/api/v1/projects/${project.projectId}`,
        });
        if (removed) await jobSucceeds(owner, removed.id);
      }),
    );
  }

  async #runProject(project: BusyProject, n: number, ending: AbortSignal): Promise<void> {
    const { projectId } = project;
    const { readers, writers, pauseMs } = clientsOf(n);
    const assignments = await Promise.all(
      Array.from({ length: readers + writers }, async () => {
        const number = ++this.#users;
        return { client: await this.#client(project, `user-${number}`, ending), projectId, number };
      }),
    );
    await Promise.all([
      runBrancher(await this.#client(project, 'brancher', ending), projectId),
      ...assignments.slice(0, readers).map((assignment) => runReader(assignment, pauseMs)),
      ...assignments.slice(readers).map((assignment) => runWriter(assignment, pauseMs)),
    ]);
  }

  async #client({ tenant }: BusyProject, name: string, ending: AbortSignal): Promise<Client> {
    const token = await this.#stack.token({ tenant, email: `${name}@${tenant}.example` });
    return new Client(new Api(this.#stack.url, token), this.#log, ending);
  }
}

async function createProject(stack: Stack, n: number): Promise<BusyProject> {
  const tenant = `tenant-${n % TENANTS}`;
  const api = new Api(stack.url, await stack.token({ tenant, email: `owner@${tenant}.example` }));
  const { id } = await api.project(`Busy ${n}`, { storage_quota_gib: 5 });
  await api.allow(id);
  const { direct_url, database_url } = await api.credentials(id, 'main');
  await fillLedger(direct_url, LEDGER_MB);
  return { projectId: id, tenant, pooledUrl: database_url };
}
