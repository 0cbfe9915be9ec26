import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { AgentLink } from '../../agent/link/agent-link.ts';
import { enrol } from '../../agent/link/enrol.ts';
import type { HostIdentity } from '../../agent/link/identity.ts';
import { runLink } from '../../agent/link/run-link.ts';
import { openDatabase } from '../../edge/database/database.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import { eventually } from '../support/eventually.ts';
import { insertProject } from '../support/records/records.ts';
import { type LinkGateway, startLinkGateway } from '../support/worker/link-gateway.ts';

vi.setConfig({ testTimeout: 20_000, hookTimeout: 30_000 });

/** What the agent tells of projects, from its real link to the real objects in workerd. */

const projectId = crypto.randomUUID();
let stateDir: string;
let gateway: LinkGateway;
let agents: AbortController[];
let cluster: string;

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-measurement-'));
  agents = [];
  cluster = '1';
  gateway = await startLinkGateway({ stateDir });
});

afterEach(async () => {
  for (const agent of agents) agent.abort();
  await gateway.stop();
  await rm(stateDir, { recursive: true });
});

/** An enrolled host whose agent is linked and has been asked what it holds. */
async function startHost(name: string) {
  const { host_id, enrolment_token } = await gateway.registerHost(name);
  const identity = await enrol({
    gatewayUrl: gateway.url,
    stateDir: join(stateDir, name),
    token: enrolment_token,
  });
  return { host_id, identity, ...(await startAgent(identity)) };
}

async function startAgent(identity: HostIdentity) {
  const controller = new AbortController();
  agents.push(controller);
  const { promise, resolve } = Promise.withResolvers<AgentLink>();
  const downs: unknown[] = [];
  let inventories = 0;
  runLink({
    gatewayUrl: gateway.url,
    identity,
    signal: controller.signal,
    bounds: BOUNDS,
    log: (event, fields) => event === 'link.down' && downs.push(fields?.reason),
    onLinked: resolve,
    handle: async () => {
      inventories += 1;
      return { system_identifier: cluster, branches: [], projects: [] };
    },
  });
  const link = await promise;
  await eventually(async () => expect(inventories).toBeGreaterThan(0));
  return { link, downs, leave: () => controller.abort() };
}

/** The project, placed on that host. */
async function placeProject(hostId: string) {
  const db = gateway.database;
  await insertProject(openDatabase(db), hostId);
  await db.prepare('update projects set id = ?').bind(projectId).run();
}

const measurement = (observed_at = new Date().toISOString()): ProjectMeasurement => ({
  project_id: projectId,
  observed_at,
  branches: [
    {
      branch_id: crypto.randomUUID(),
      database_size_bytes: 7_000_000,
      cache_hit_ratio: null,
      cpu_seconds: 1.25,
      active_connections: 1,
      total_connections: 2,
      transactions_committed: 3,
      transactions_rolled_back: 4,
      rows_fetched: 5,
      rows_inserted: 6,
      rows_updated: 7,
      rows_deleted: 8,
    },
  ],
});

const onRecord = async () =>
  gateway.database.prepare('select system_identifier from hosts').first('system_identifier');
const recorded = () => gateway.measurements(projectId);

test("a measurement reaches its project's coordinator, also when the link's object has slept", async () => {
  const host = await startHost('a');
  await placeProject(host.host_id);
  const told = measurement();
  host.link.notify('measurement', told);
  await eventually(async () => expect(await recorded()).toEqual([told]));
  await gateway.hibernate(host.host_id);
  const later = measurement();
  host.link.notify('measurement', later);
  await eventually(async () => expect(await recorded()).toEqual([told, later]));
});

test("a host can't tell anything of another host's project", async () => {
  const [owner, liar] = [await startHost('a'), await startHost('b')];
  await placeProject(owner.host_id);
  liar.link.notify('measurement', measurement());
  // Answered after what came before it.
  await gateway.call(liar.host_id, 'host.inventory', {});
  const told = measurement();
  owner.link.notify('measurement', told);
  await eventually(async () => expect(await recorded()).toEqual([told]));
});

test('what has a wrong form is dropped, and the link stays up', async () => {
  const host = await startHost('a');
  await placeProject(host.host_id);
  host.link.notify('measurement', { ...measurement(), branches: [{} as never] });
  const told = measurement();
  host.link.notify('measurement', told);
  await eventually(async () => expect(await recorded()).toEqual([told]));
  expect(host.downs).toEqual([]);
});

test('a notification that is not known ends the link', async () => {
  const host = await startHost('a');
  host.link.notify('reboot' as never, {} as never);
  await eventually(async () => expect(host.downs).toEqual(['malformed']));
});

test('a host that runs another cluster than the one on record is not listened to', async () => {
  const host = await startHost('a');
  await placeProject(host.host_id);
  await eventually(async () => expect(await onRecord()).toBe(cluster));
  host.leave();
  cluster = '2';
  const { link } = await startAgent(host.identity);
  await eventually(async () => expect(await gateway.isLinked(host.host_id)).toBe(false));
  link.notify('measurement', measurement());
  // Answered after what came before it.
  await gateway.call(host.host_id, 'host.inventory', {});
  await gateway.database.exec('update hosts set system_identifier = null');
  await eventually(async () => expect(await gateway.isLinked(host.host_id)).toBe(true));
  const told = measurement();
  link.notify('measurement', told);
  await eventually(async () => expect(await recorded()).toEqual([told]));
});
