import { eq } from 'drizzle-orm';
import { openDatabase } from '../../../edge/database/database.ts';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { streamsBucket } from '../../../edge/rate-limits/buckets.ts';
import type { RateLimiter } from '../../../edge/rate-limits/rate-limiter.ts';
import type { HostFailure } from '../../../shared/protocol/host-failures.ts';
import type { Method, MethodResult } from '../../../shared/protocol/operations.ts';
import { Api } from '../api.ts';
import { freePort } from '../free-port.ts';
import { createIdentityProvider, createMachines, type Ids } from '../operations.ts';
import { migratedD1 } from '../records/d1.ts';
import { measurementOf } from '../records/sample-measurement.ts';
import { newSigner, startProvider } from '../sign-in/provider.ts';
import { remoteD1, remoteObject } from './remote-bindings.ts';
import { TALLY_HEADER, type Tally } from './trips.ts';
import type { HostLink, ProjectCoordinator, WebhookSender } from './trips-worker.ts';
import { bundle, isolateUrl, OBJECTS, PLATFORM_SECRET, SETTINGS, startWorker, UNCAPPED } from './worker.ts';

const UNLIMITED = '10000000';

/** Who owns what a test has made. */
const OWNER = 'user-1';

interface Caller {
  gid?: string;
  role?: string;
  tenant?: string;
  /** Until the token expires. */
  seconds?: number;
}

/**
 * The whole gateway in real workerd, a project with one of each thing, and a host that answers immediately.
 * @param delayMs before every call of an object or of D1 sets out
 * @param settings of the gateway that differ from those of other tests; with `REPLICA_LAG_MS` D1 has a
 *   replica, whose calls are delayed by `REPLICA_DELAY_MS`
 * @param start `folder`: for its storage, if it is to be restarted; default: in memory
 */
export async function startTripsGateway(
  delayMs: number,
  settings: Record<string, string | number> = {},
  start: { folder?: string; isolates?: number } = {},
) {
  const signer = newSigner('key-1');
  const provider = await startProvider(signer);
  const { url: issuer } = provider;
  provider.document = { keys: [signer.entry], issuer, authorization_endpoint: `${issuer}/authorize` };
  const script = await bundle('trips-worker');
  const options = {
    d1Databases: 'REPLICA_LAG_MS' in settings ? ['DB', 'REPLICA'] : ['DB'],
    // What a test has planted is in the memory of the link.
    durableObjects: { ...OBJECTS, HOST_LINK: { ...OBJECTS.HOST_LINK, unsafePreventEviction: true } },
    bindings: {
      ...SETTINGS,
      ...UNCAPPED,
      IDP_URL: issuer,
      LIMIT_PUBLIC_PER_MINUTE: UNLIMITED,
      LIMIT_READS_PER_MINUTE: UNLIMITED,
      DELAY_MS: delayMs,
      ...settings,
    },
  };
  // Any outgoing connection may take a port that the kernel has chosen, as soon as the gateway is killed.
  const port = start.folder === undefined ? 0 : await freePort();
  let worker = startWorker(script, { ...options, port }, start);
  const { origin: url } = await worker.ready;
  const database = await migratedD1(worker);
  const db = openDatabase(database);
  const copies =
    'REPLICA_LAG_MS' in settings ? [db, openDatabase(await migratedD1(worker, 'REPLICA'))] : [db];
  const makeHost = async () => {
    const id = crypto.randomUUID();
    const ports = { directPort: 5432, pooledPort: 6432 };
    const now = new Date();
    const host = { id, name: id, dbHost: 'db.example.com', ...ports, enrolledAt: now, createdAt: now };
    for (const copy of copies) await copy.insert(hosts).values(host);
    return id;
  };
  const host_id = await makeHost();
  const linkOf = (hostId: string) => remoteObject<HostLink>(worker, 'HOST_LINK', hostId);
  const linkOfProject = async (projectId: string) => {
    const [project] = await db.select().from(projects).where(eq(projects.id, projectId));
    return linkOf(project?.hostId ?? '');
  };
  const coordinatorOf = (projectId: string) =>
    remoteObject<ProjectCoordinator>(worker, 'PROJECT_COORDINATOR', projectId);
  const tokenOf = async ({ gid = OWNER, role = 'owner', tenant = 'acme', seconds = 3600 }: Caller) => {
    if (gid === OWNER && tenant === 'acme' && role !== 'owner')
      throw new Error('a lower role of the owner would also be that of the keys of other files');
    return signer.token({
      gid,
      email: `${gid}@example.com`,
      role,
      scp: ['branchgate:read', 'branchgate:write'],
      iat: new Date().toISOString(),
      exp: new Date(Date.now() + seconds * 1000).toISOString(),
      ctx: { tenant_id: tenant },
    });
  };
  const token = await tokenOf({});
  const api = new Api(url, token);

  return {
    url,
    /** The address of one isolate of several. */
    isolateUrl: (isolate: number) => isolateUrl(worker, isolate),
    token,
    tokenOf,
    db,
    /** The gateway's D1. */
    database,
    api,
    platform: new Api(url, PLATFORM_SECRET),
    /**
     * Puts the project on a new host.
     * @returns says whether its agent is connected, and whether it answers
     */
    async moveProject(projectId: string) {
      const hostId = await makeHost();
      await db.update(projects).set({ hostId }).where(eq(projects.id, projectId));
      const link = linkOf(hostId);
      return (linked: boolean, answers?: boolean) => link.setLinked(linked, answers);
    },
    /** Makes calls of the project's host fail. @param failure null: the method succeeds again */
    async plantFailure(projectId: string, method: Method, failure: HostFailure | null) {
      await (await linkOfProject(projectId)).plantFailure(method, failure);
    },
    async plantAnswer<M extends Method>(projectId: string, method: M, answer: MethodResult<M>) {
      await (await linkOfProject(projectId)).plantAnswer(method, answer);
    },
    /** Whether a reset that is undone has exchanged the database already, as the project's host says. */
    async answerResetCancel(projectId: string, swapped: boolean) {
      await (await linkOfProject(projectId)).setSwapped(swapped);
    },
    /** Every call of the project's host succeeds, and none is counted so far. */
    forgetCalls: async (projectId: string) => (await linkOfProject(projectId)).forgetCalls(),
    /** How many calls of the method the project's host has received. */
    async countCalls(projectId: string, method: Method) {
      return (await linkOfProject(projectId)).countCalls(method);
    },
    /** A project with a branch, a rule, a job and a measurement. */
    async makeThings(): Promise<Ids> {
      const { id: project_id, main_branch } = await api.project('Shop');
      const { id: branch_id } = await api.branch(project_id, 'made');
      const { id: rule_id } = await api.allow(project_id);
      const { body } = await api.get<{ jobs: { id: string }[] }>(`/api/v1/projects/${project_id}/jobs`);
      await coordinatorOf(project_id).recordMeasurement(
        measurementOf(project_id, Date.now(), { [main_branch.id]: {}, [branch_id]: {} }),
      );
      const job_id = body.jobs[0]?.id ?? '';
      const change = { sql: 'alter table book add note text' };
      const planned = await api.post<{ id: string }>(`/api/v1/projects/${project_id}/changes`, change);
      const webhook_id = await api.webhook(project_id);
      const machines = await createMachines(api, project_id);
      const provider = await createIdentityProvider(api);
      const { body: me } = await api.get('/api/v1/me');
      const ofPeople = {
        user_id: String(me.id),
        tenant_id: String(me.tenant_id),
        invitation_id: crypto.randomUUID(),
        session_id: crypto.randomUUID(),
        grant_id: crypto.randomUUID(),
        bisection_id: crypto.randomUUID(),
      };
      return {
        host_id,
        project_id,
        branch_id,
        branch_ref: branch_id,
        rule_id,
        job_id,
        change_id: planned.body.id,
        webhook_id,
        // The host of this gateway keeps none.
        snapshot_id: crypto.randomUUID(),
        deleted_branch_id: crypto.randomUUID(),
        table: 'book',
        ...ofPeople,
        ...machines,
        ...provider,
      };
    },
    /** Kills workerd and starts it again with the same storage. */
    restart: async () => {
      await worker.dispose();
      worker = startWorker(script, { ...options, port }, start);
      await worker.ready;
    },
    coordinatorOf,
    /** Makes the deliveries and failures of a webhook older, and attempts what waits. */
    ageWebhook: async (id: string, milliseconds: number) => {
      await remoteObject<WebhookSender>(worker, 'WEBHOOK_SENDER', id).age(milliseconds);
    },
    /** Takes places among the streams of a tenant. */
    holdStreams: async (
      tenant: string,
      action: Parameters<typeof streamsBucket>[1],
      holders: string[],
      max: number,
    ) => {
      const limiter = remoteObject<RateLimiter>(worker, 'RATE_LIMITER', streamsBucket(tenant, action));
      return Promise.all(holders.map((holder) => limiter.hold(holder, max)));
    },
    /** Runs a statement in the gateway's D1. */
    inD1: async (sql: string, ...values: string[]) => {
      const statement = remoteD1(worker, 'DB').prepare(sql);
      return (await statement.bind(...values).run()).results;
    },
    stop: async () => {
      await worker.dispose();
      await provider.stop();
    },
  };
}

export type TripsGateway = Awaited<ReturnType<typeof startTripsGateway>>;

let shared: Promise<TripsGateway> | undefined;

/**
 * The gateway of the files of this process that have projects of their own and leave hosts and caps as they are. It
 * runs until the process ends.
 */
export function sharedTripsGateway(): Promise<TripsGateway> {
  shared ??= startTripsGateway(0, { LIMIT_WRITES_PER_MINUTE: UNLIMITED });
  return shared;
}

/** What the request of this answer cost. */
export const tallyOf = ({ headers }: { headers: Headers }): Tally =>
  JSON.parse(headers.get(TALLY_HEADER) ?? '') as Tally;
