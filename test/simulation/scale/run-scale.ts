import { setTimeout as sleep } from 'node:timers/promises';
import type { AgentLink } from '../../../agent/link/agent-link.ts';
import { runLink } from '../../../agent/link/run-link.ts';
import { inventoryAnswer } from '../../support/host/scripted-inventory.ts';
import { migratedD1 } from '../../support/records/d1.ts';
import { measurementOf } from '../../support/records/sample-measurement.ts';
import { NOTHING, type Usage } from '../../support/worker/meter.ts';
import type { StorageUse } from '../../support/worker/scale-worker.ts';
import { bundle, OBJECTS, SETTINGS, startWorker } from '../../support/worker/worker.ts';
import { BRANCHES_PER_PROJECT, type FleetHost, makeFleet } from './fleet.ts';

export interface Scale {
  hosts: number;
  branches: number;
  /** Measurements of each project; 60 are an hour. */
  measurements: number;
}

export interface Measured extends Scale {
  projects: number;
  d1Bytes: number;
  /** All hosts together after an outage, until each is linked, and until each is reconciled. */
  linking: { seconds: number; reconciledSeconds: number; bytes: number; usage: Usage };
  /** One more reconciliation of all hosts, without a difference. */
  reconciling: { bytes: number; usage: Usage };
  /** One measurement of all projects. */
  measuring: {
    bytes: number;
    usage: Usage;
    /** Of the object of a project, without its history. */
    objectRows: number;
    objectBytes: number;
    /** Of the link of a host. */
    linkRows: number;
  };
}

const SAMPLED_OBJECTS = 20;
const QUIET_MS = 1_000;
/** With more of them, the one thread of workerd can be busy for minutes, and calls of this process time out. */
const HOSTS_AT_A_TIME = 20;

interface Agent {
  host: FleetHost;
  link: AgentLink | null;
  inventories: number;
}

/** The gateway in workerd with scripted agents, each with the real link. */
export async function runScale(
  scale: Scale,
  signal: AbortSignal,
  say: (text: string) => void,
): Promise<Measured> {
  const { WEBHOOK_SENDER: _, CHALLENGES: __, ...objects } = OBJECTS;
  const worker = startWorker(await bundle('scale-worker'), {
    d1Databases: ['DB'],
    durableObjects: objects,
    bindings: SETTINGS,
    // The lines of the gateway would be most of the work.
    handleStructuredLogs: () => {},
  });
  const stopping = new AbortController();
  const links: Promise<void>[] = [];
  let bytes = 0;
  try {
    const { origin } = await worker.ready;
    const database = await migratedD1(worker);
    const usage = async () => (await (await fetch(`${origin}/test/usage`)).json()) as Usage;
    say(`writing the records of ${scale.branches} branches`);
    const fleet = await makeFleet(database, scale);
    const { meta } = await database.prepare('select 1').run();
    const agents: Agent[] = fleet.map((host) => ({ host, link: null, inventories: 0 }));
    await usage();

    const until = async (what: string, isDone: (agent: Agent) => boolean) => {
      while (!agents.every(isDone)) {
        signal.throwIfAborted();
        await sleep(20);
      }
      say(what);
    };
    /** Until nothing was used for a while. */
    const settled = async () => {
      const sum = structuredClone(NOTHING);
      for (let isBusy = true; isBusy; ) {
        await sleep(QUIET_MS);
        signal.throwIfAborted();
        const more = await usage();
        isBusy = more.queries > 0 || more.pending > 0 || Object.keys(more.objectCalls).length > 0;
        add(sum, more);
      }
      return sum;
    };

    const start = performance.now();
    for (const agent of agents) {
      links.push(
        runLink({
          gatewayUrl: origin,
          identity: agent.host.identity,
          signal: stopping.signal,
          log: () => {},
          onLinked: (link) => {
            agent.link = link;
          },
          handle: async (method, params) => {
            const answer = await inventoryAnswer(agent.host.holds, method, params);
            if (method === 'inventory.digest') agent.inventories += 1;
            bytes += JSON.stringify(params).length + JSON.stringify(answer ?? {}).length;
            return answer ?? {};
          },
        }),
      );
    }
    await until('all hosts are linked', ({ link }) => link !== null);
    const seconds = (performance.now() - start) / 1000;
    await until('all hosts were asked for their inventory', ({ inventories }) => inventories > 0);
    const linkingUsage = await settled();
    const reconciledSeconds = (performance.now() - start - QUIET_MS) / 1000;
    const linking = { seconds, reconciledSeconds, bytes, usage: linkingUsage };

    bytes = 0;
    const before = agents.map(({ inventories }) => inventories);
    const hostLinks = await worker.getDurableObjectNamespace('HOST_LINK');
    for (const { host } of agents) {
      const object = hostLinks.get(hostLinks.idFromName(host.identity.host_id)) as unknown as {
        acceptRecords(): Promise<void>;
      };
      await object.acceptRecords();
    }
    await until(
      'all hosts are reconciled again',
      (agent) => agent.inventories > (before[agents.indexOf(agent)] ?? 0),
    );
    const reconciling = { bytes, usage: await settled() };

    const projectIds = fleet.flatMap(({ holds }) => holds.projects.map(({ project_id }) => project_id));
    const storageOf = async (binding: string, names: readonly string[]) => {
      const objects = await worker.getDurableObjectNamespace(binding);
      const uses = await Promise.all(
        names.slice(0, SAMPLED_OBJECTS).map((name) => {
          const object = objects.get(objects.idFromName(name));
          return (object as unknown as { storageUse(): Promise<StorageUse> }).storageUse();
        }),
      );
      const mean = (of: keyof StorageUse) => uses.reduce((sum, use) => sum + use[of], 0) / uses.length;
      return { rows: mean('rows'), bytes: mean('bytes') };
    };
    const storage = async () => ({
      project: await storageOf('PROJECT_COORDINATOR', projectIds),
      link: await storageOf(
        'HOST_LINK',
        fleet.map(({ identity }) => identity.host_id),
      ),
    });
    /** Sends one measurement of each project. */
    const measureAll = async () => {
      const sum = structuredClone(NOTHING);
      for (let first = 0; first < agents.length; first += HOSTS_AT_A_TIME) {
        for (const { host, link } of agents.slice(first, first + HOSTS_AT_A_TIME))
          bytes += measure(host, link);
        add(sum, await settled());
      }
      return sum;
    };
    // The first one records what was never measured. Each round waits for the end of the one before: a
    // project may have one measurement in half a second.
    await measureAll();
    const storageBefore = await storage();
    const measuringUsage = structuredClone(NOTHING);
    bytes = 0;
    for (let n = 0; n < scale.measurements; n++) {
      add(measuringUsage, await measureAll());
      say(`measurement ${n + 1} of ${scale.measurements}`);
    }
    const storageAfter = await storage();
    const share = (value: number) => value / scale.measurements;
    return {
      ...scale,
      projects: fleet.reduce((sum, { holds }) => sum + holds.projects.length, 0),
      d1Bytes: (meta as { size_after?: number }).size_after ?? 0,
      linking,
      reconciling,
      measuring: {
        bytes: share(bytes),
        usage: scaled(measuringUsage, share),
        objectRows: share(storageAfter.project.rows - storageBefore.project.rows),
        objectBytes: storageAfter.project.bytes,
        linkRows: share(storageAfter.link.rows - storageBefore.link.rows),
      },
    };
  } finally {
    stopping.abort();
    await Promise.all(links);
    await worker.dispose();
  }
}

/** Sends one measurement of each project. @returns bytes */
function measure({ holds }: FleetHost, link: AgentLink | null): number {
  let bytes = 0;
  for (const [index, { project_id }] of holds.projects.entries()) {
    const branches = holds.branches.slice(index * BRANCHES_PER_PROJECT, (index + 1) * BRANCHES_PER_PROJECT);
    const values = Object.fromEntries(
      branches.map(({ branch_id }) => [branch_id, { database_size_bytes: 8_000_000 }]),
    );
    const measurement = measurementOf(project_id, Date.now(), values);
    link?.notify('measurement', measurement);
    bytes += JSON.stringify(measurement).length;
  }
  return bytes;
}

function add(sum: Usage, more: Usage): void {
  sum.queries += more.queries;
  sum.rowsRead += more.rowsRead;
  sum.rowsWritten += more.rowsWritten;
  for (const [name, calls] of Object.entries(more.objectCalls))
    sum.objectCalls[name] = (sum.objectCalls[name] ?? 0) + calls;
}

const scaled = (usage: Usage, by: (value: number) => number): Usage => ({
  ...usage,
  queries: by(usage.queries),
  rowsRead: by(usage.rowsRead),
  rowsWritten: by(usage.rowsWritten),
  objectCalls: Object.fromEntries(
    Object.entries(usage.objectCalls).map(([name, calls]) => [name, by(calls)]),
  ),
});
