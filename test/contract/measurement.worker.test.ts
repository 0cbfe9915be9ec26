import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import type { AgentLink } from '../../agent/link/agent-link.ts';
import { enrol } from '../../agent/link/enrol.ts';
import type { HostIdentity } from '../../agent/link/identity.ts';
import { runLink } from '../../agent/link/run-link.ts';
import { openDatabase } from '../../edge/database/database.ts';
import type { ProjectMeasurement } from '../../shared/measurement.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import { eventually } from '../support/eventually.ts';
import { EMPTY_HOST, inventoryAnswer } from '../support/host/scripted-inventory.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { insertProject } from '../support/records/records.ts';
import { type LinkGateway, startLinkGateway } from '../support/worker/link-gateway.ts';

/** Measurements of projects, from the agent's real link to the real objects in workerd. */

let stateDir: string;
let gateway: LinkGateway;
/** Each test has a project and hosts of its own. */
let projectId: string;
let agents: AbortController[];
let cluster: string;

beforeAll(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-measurement-'));
  gateway = await startLinkGateway({ stateDir });
});
afterAll(async () => {
  await gateway.stop();
  await rm(stateDir, { recursive: true });
});

beforeEach(() => {
  projectId = crypto.randomUUID();
  agents = [];
  cluster = '1';
});
afterEach(() => {
  for (const agent of agents) agent.abort();
});

/** An enrolled host whose agent is linked and has returned its inventory. */
async function startHost() {
  const name = crypto.randomUUID();
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
    handle: async (method, params) => {
      inventories += 1;
      return inventoryAnswer({ ...EMPTY_HOST, system_identifier: cluster }, method, params);
    },
  });
  const link = await promise;
  await eventually(async () => expect(inventories).toBeGreaterThan(0));
  return { link, downs, leave: () => controller.abort() };
}

/** Inserts the project, placed on that host. */
const placeProject = (hostId: string) => insertProject(openDatabase(gateway.database), hostId, projectId);

const measurement = (
  observed_at = new Date().toISOString(),
  branch_id: string = crypto.randomUUID(),
): ProjectMeasurement => ({
  project_id: projectId,
  observed_at,
  branches: [
    {
      branch_id,
      database_size_bytes: 7_000_000,
      file_count: 310,
      cache_hit_ratio: null,
      memory_bytes: 2_500_000,
      longest_query_seconds: 0.5,
      connection_wait_seconds: 0,
      dead_tuple_ratio: null,
      following_lag_seconds: null,
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

const onRecord = async (hostId: string) =>
  gateway.database
    .prepare('select system_identifier from hosts where id = ?')
    .bind(hostId)
    .first('system_identifier');
const recorded = () => gateway.measurements(projectId);

test("a measurement reaches its project's coordinator, also after the link's object has hibernated", async () => {
  const host = await startHost();
  await placeProject(host.host_id);
  const sent = measurement();
  host.link.notify('measurement', sent);
  await eventually(async () => expect(await recorded()).toEqual([sent]));
  await gateway.hibernate(host.host_id);
  const later = measurement();
  host.link.notify('measurement', later);
  await eventually(async () => expect(await recorded()).toEqual([sent, later]));
});

/** Inserts a branch of the project. @returns its ID */
async function insertBranch() {
  const branchId = crypto.randomUUID();
  await gateway.database
    .prepare(
      `insert into project_branches (id, project_id, branch_name, database_name, source_database, status, lifespan,
         created_by, tenant_id, created_at, updated_at) values (?, ?, 'main', 'd', 's', 'active', 'forever', 'u', 't', 0, 0)`,
    )
    .bind(branchId, projectId)
    .run();
  return branchId;
}

test.runIf(IS_NIGHTLY)(
  'measurements that the object of the project has not stored outlive the memory of both objects',
  async () => {
    const host = await startHost();
    await placeProject(host.host_id);
    const branchId = await insertBranch();
    const start = Date.now() - 30_000;
    const sent = [0, 10_000, 20_000].map((late) =>
      measurement(new Date(start + late).toISOString(), branchId),
    );
    for (const one of sent) {
      await gateway.loseCoordinator(projectId);
      host.link.notify('measurement', one);
      await eventually(async () =>
        expect((await gateway.monitored(projectId)).last?.at).toBe(Date.parse(one.observed_at)),
      );
      // The filter admits one in half a second.
      await sleep(500);
    }
    const last = Date.parse(sent.at(-1)?.observed_at ?? '');
    expect((await gateway.storedMeasurement(projectId))?.at).toBeLessThan(last);
    // The link has written what it keeps.
    await sleep(1500);
    await gateway.loseCoordinator(projectId);
    await gateway.hibernate(host.host_id);
    const { last: found } = await gateway.monitored(projectId);
    expect(found?.at).toBe(last);
    expect(Object.keys(found?.branches ?? {})).toEqual([branchId]);
    expect(await gateway.keptHead(host.host_id, projectId)).toContain(branchId);
    expect(await gateway.keptHead(host.host_id, crypto.randomUUID())).toBeNull();
    await gateway.database.exec(`delete from project_branches where project_id = '${projectId}'`);
    await gateway.database.exec(`delete from projects where id = '${projectId}'`);
    await gateway.reconcile(host.host_id);
    await eventually(async () => expect(await gateway.keptHead(host.host_id, projectId)).toBeNull());
  },
);

test('blocks of a branch reach its record', async () => {
  const host = await startHost();
  await placeProject(host.host_id);
  const branch_id = await insertBranch();
  const until = new Date(Date.now() + 60_000).toISOString();
  const blocks = [{ branch_id, reason: 'disk' as const, until }];
  host.link.notify('blocks', { project_id: projectId, observed_at: new Date().toISOString(), blocks });
  const stored = () =>
    gateway.database
      .prepare('select blocks from project_branches where id = ?')
      .bind(branch_id)
      .first<string>('blocks');
  await eventually(async () =>
    expect(JSON.parse((await stored()) ?? '')).toEqual([{ reason: 'disk', until }]),
  );
});

test("measurements of another host's project are dropped", async () => {
  const owner = await startHost();
  const liar = await startHost();
  await placeProject(owner.host_id);
  liar.link.notify('measurement', measurement());
  // Its reply follows the processing of the earlier messages.
  await gateway.call(liar.host_id, 'host.inventory', {});
  const sent = measurement();
  owner.link.notify('measurement', sent);
  await eventually(async () => expect(await recorded()).toEqual([sent]));
});

test('a malformed measurement is dropped, and the link stays up', async () => {
  const host = await startHost();
  await placeProject(host.host_id);
  host.link.notify('measurement', { ...measurement(), branches: [{} as never] });
  const sent = measurement();
  host.link.notify('measurement', sent);
  await eventually(async () => expect(await recorded()).toEqual([sent]));
  expect(host.downs).toEqual([]);
});

test('an unknown notification ends the link', async () => {
  const host = await startHost();
  host.link.notify('reboot' as never, {} as never);
  await eventually(async () => expect(host.downs).toEqual(['malformed']));
});

test.runIf(IS_NIGHTLY)(
  'measurements of a host with another cluster than the recorded one are dropped',
  async () => {
    const host = await startHost();
    await placeProject(host.host_id);
    await eventually(async () => expect(await onRecord(host.host_id)).toBe(cluster));
    host.leave();
    cluster = '2';
    const { link } = await startAgent(host.identity);
    await eventually(async () => expect(await gateway.isLinked(host.host_id)).toBe(false));
    link.notify('measurement', measurement());
    // Its reply follows the processing of the earlier messages.
    await gateway.call(host.host_id, 'host.inventory', {});
    await gateway.database.exec('update hosts set system_identifier = null');
    await eventually(async () => expect(await gateway.isLinked(host.host_id)).toBe(true));
    const sent = measurement();
    link.notify('measurement', sent);
    await eventually(async () => expect(await recorded()).toEqual([sent]));
  },
);
