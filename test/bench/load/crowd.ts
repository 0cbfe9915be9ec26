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

interface Seats {
  readers: number;
  writers: number;
  /** Between two calls, on average. */
  pauseMs: number;
}
/** Too many for a project's limits on any machine. */
const CROWDED: Seats = { readers: 14, writers: 14, pauseMs: 0 };
const OTHER: Seats = { readers: 6, writers: 2, pauseMs: 1_000 };
const seatsOf = (project: number) => (project === 0 ? CROWDED : OTHER);
export const API_CLIENTS = Array.from({ length: PROJECTS }, (_, n) => seatsOf(n)).reduce(
  (sum, { readers, writers }) => sum + readers + writers,
  0,
);

const LEDGER_MB = 2;
/** Between two transactions of a client, on average. */
const PAUSE_MS = 1_000;

interface Place {
  projectId: string;
  tenant: string;
  pooledUrl: string;
}

/** Everybody who uses the service at once. */
export class Crowd {
  readonly #stack: Stack;
  readonly #log: CallLog;
  readonly #places: Place[];
  /** The pooled clients of each project. */
  readonly loads: Load[] = [];
  #users = 0;

  private constructor(stack: Stack, log: CallLog, places: Place[]) {
    this.#stack = stack;
    this.#log = log;
    this.#places = places;
  }

  /** Makes the projects, and connects the pooled clients, who begin at once. */
  static async start(stack: Stack, log: CallLog): Promise<Crowd> {
    const places: Place[] = [];
    for (let n = 0; n < PROJECTS; n++) places.push(await makePlace(stack, n));
    const crowd = new Crowd(stack, log, places);
    for (const { pooledUrl } of places) crowd.loads.push(await Load.start(pooledUrl, POOLED_EACH, PAUSE_MS));
    // A branch that is made meanwhile would be proved with a place at the pooler that one of them needs.
    await Promise.all(crowd.loads.map(({ connected }) => connected));
    return crowd;
  }

  /** Asks the API and makes branches, until the end. */
  async run(ending: AbortSignal): Promise<void> {
    await Promise.all(this.#places.map((place, n) => this.#workAt(place, n, ending)));
  }

  /** Sends the pooled clients home, and deletes every project. */
  async stop(signal: AbortSignal): Promise<void> {
    await Promise.all(this.loads.map((load) => load.stop()));
    await Promise.all(
      this.#places.map(async (place) => {
        const owner = await this.#client(place, 'owner', signal);
        const removed = await owner.request<{ id: string }>({
          method: 'DELETE',
          path: `/api/v1/projects/${place.projectId}`,
        });
        if (removed) await jobSucceeds(owner, removed.id);
      }),
    );
  }

  async #workAt(place: Place, n: number, ending: AbortSignal): Promise<void> {
    const { projectId } = place;
    const { readers, writers, pauseMs } = seatsOf(n);
    const seats = await Promise.all(
      Array.from({ length: readers + writers }, async () => {
        const number = ++this.#users;
        return { client: await this.#client(place, `user-${number}`, ending), projectId, number };
      }),
    );
    await Promise.all([
      runBrancher(await this.#client(place, 'brancher', ending), projectId),
      ...seats.slice(0, readers).map((seat) => runReader(seat, pauseMs)),
      ...seats.slice(readers).map((seat) => runWriter(seat, pauseMs)),
    ]);
  }

  async #client({ tenant }: Place, name: string, ending: AbortSignal): Promise<Client> {
    const token = await this.#stack.token({ tenant, email: `${name}@${tenant}.example` });
    return new Client(new Api(this.#stack.url, token), this.#log, ending);
  }
}

async function makePlace(stack: Stack, n: number): Promise<Place> {
  const tenant = `tenant-${n % TENANTS}`;
  const api = new Api(stack.url, await stack.token({ tenant, email: `owner@${tenant}.example` }));
  const { id } = await api.project(`Busy ${n}`, { storage_quota_gib: 5 });
  await api.allow(id);
  const { direct_url, database_url } = await api.credentials(id, 'main');
  await fillLedger(direct_url, LEDGER_MB);
  return { projectId: id, tenant, pooledUrl: database_url };
}
