import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importJWK } from 'jose';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { WebSocket } from 'ws';
import type { Handle } from '../../agent/link/dispatch.ts';
import { enrol } from '../../agent/link/enrol.ts';
import type { HostIdentity } from '../../agent/link/identity.ts';
import { runLink } from '../../agent/link/run-link.ts';
import { openDatabase } from '../../edge/database/database.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import { CLOSES } from '../../shared/protocol/closes.ts';
import { eventually } from '../support/eventually.ts';
import { signAnswer } from '../support/host/host-key.ts';
import { EMPTY_HOST, inventoryAnswer } from '../support/host/scripted-inventory.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { insertBranch, insertDeletion, insertProject, readBranch } from '../support/records/records.ts';
import { TcpProxy } from '../support/tcp-proxy.ts';
import { type LinkGateway, startLinkGateway } from '../support/worker/link-gateway.ts';

/** The agent's real link against the real object in workerd. Only the operations are simulated. */

/** A pause of this process that is as long as the silence would end a link. */
const quick = { heartbeat: 1_000, silence: 4_000, handshakeTime: 4_000 };
const bounds = { ...BOUNDS, ...quick };
const inventory = EMPTY_HOST;
const ids = { job_id: crypto.randomUUID(), project_id: crypto.randomUUID() };

let stateDir: string;
let gateway: LinkGateway;
let identity: HostIdentity;
let agents: AbortController[];
/** The methods that were called on the agents, in order. */
let asked: string[];
const never = new Promise<never>(() => {});

beforeAll(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-link-'));
  gateway = await startLinkGateway({ stateDir, bounds: quick });
});
afterAll(async () => {
  await gateway.stop();
  await rm(stateDir, { recursive: true });
});

/** Each test has a host of its own. */
beforeEach(async () => {
  agents = [];
  asked = [];
  const name = crypto.randomUUID();
  const { enrolment_token } = await gateway.registerHost(name);
  identity = await enrol({
    gatewayUrl: gateway.url,
    stateDir: join(stateDir, name),
    token: enrolment_token,
  });
});

afterEach(() => {
  for (const agent of agents) agent.abort();
});

interface Agent {
  /** How often the link was established. */
  ups: number;
  events: { event: string; [field: string]: unknown }[];
  leave: () => void;
}

const isInventory = (method: string) => method === 'inventory.digest' || method === 'host.inventory';

/** Starts an agent and waits until it is linked. */
async function startAgent(
  options: { handle?: Handle; gatewayUrl?: string; holds?: () => typeof inventory } = {},
): Promise<Agent> {
  const controller = new AbortController();
  agents.push(controller);
  let held = inventory;
  const agent: Agent = { ups: 0, events: [], leave: () => controller.abort() };
  runLink({
    gatewayUrl: options.gatewayUrl ?? gateway.url,
    identity,
    signal: controller.signal,
    bounds,
    log: (event, fields) => agent.events.push({ event, ...fields }),
    onLinked: () => {
      agent.ups += 1;
    },
    handle: async (method, params) => {
      asked.push(method);
      // The pages that follow a digest are of the same moment.
      if (method !== 'inventory.list') held = (isInventory(method) && options.holds?.()) || held;
      const answer = await inventoryAnswer(held, method, params);
      if (answer) return answer;
      return options.handle ? options.handle(method, params) : { dropped_databases: 0 };
    },
  });
  await eventually(async () => expect(agent.ups).toBe(1));
  return agent;
}

const takeInventory = () => gateway.call(identity.host_id, 'host.inventory', {});
const dropProject = () => gateway.call(identity.host_id, 'project.drop', ids);

/** A socket on which a test sends the messages of the protocol itself. */
async function dialByHand() {
  const socket = new WebSocket(
    `${gateway.url.replace('http', 'ws')}/agent/v1/link?host_id=${identity.host_id}`,
  );
  const messages: Record<string, unknown>[] = [];
  const closed = new Promise<number>((resolve) => socket.on('close', resolve));
  socket.on('message', (data) => messages.push(JSON.parse(data.toString())));
  socket.on('error', () => {});
  const hear = (count: number) =>
    eventually(async () => {
      expect(messages.length).toBeGreaterThanOrEqual(count);
      return messages[count - 1] ?? {};
    });
  const { nonce } = await hear(1);
  const answer = async (epoch: number) => {
    const key = (await importJWK(identity.private_key, 'EdDSA')) as CryptoKey;
    const token = await signAnswer(key, {
      iss: identity.host_id,
      aud: new URL(gateway.url).host,
      nonce: String(nonce),
      epoch,
      iat: Math.floor(Date.now() / 1000),
    });
    return JSON.stringify({ type: 'answer', token });
  };
  return { socket, messages, closed, hear, answer };
}

test('a call returns its result, and every new link reconciles the host', async () => {
  await startAgent();
  await eventually(async () => expect(asked).toEqual(['inventory.digest']));
  expect(await takeInventory()).toEqual({ ok: true, value: inventory });
});

describe('a host that starts with another cluster', () => {
  const other = { ...inventory, system_identifier: '2' };
  const isLinked = () => gateway.isLinked(identity.host_id);
  const onRecord = async () =>
    gateway.database
      .prepare('select system_identifier from hosts where id = ?')
      .bind(identity.host_id)
      .first('system_identifier');

  /** An agent links, reports its cluster and disconnects. */
  async function firstCluster() {
    const agent = await startAgent();
    await eventually(async () => expect(await onRecord()).toBe(inventory.system_identifier));
    expect(await isLinked()).toBe(true);
    agent.leave();
  }

  test('is not changed and gets no work until it runs the first cluster again', async () => {
    const projects = [{ project_id: ids.project_id, access_revision: 0 }];
    await insertDeletion(openDatabase(gateway.database), identity.host_id, ids.project_id);
    await firstCluster();
    const agent = await startAgent({ holds: () => ({ ...other, projects }) });
    await eventually(async () => expect(await isLinked()).toBe(false));
    expect(await dropProject()).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
    expect(await takeInventory()).toMatchObject({ ok: true });
    expect(asked).not.toContain('project.drop');
    agent.leave();

    await startAgent({ holds: () => ({ ...inventory, projects }) });
    await eventually(async () => expect(asked).toContain('project.drop'));
    expect(await isLinked()).toBe(true);
  });

  test('gets work on the new cluster once an operator has accepted it', async () => {
    await firstCluster();
    await startAgent({ holds: () => other });
    await eventually(async () => expect(await isLinked()).toBe(false));
    await gateway.database.exec(`update hosts set system_identifier = null where id = '${identity.host_id}'`);
    await eventually(async () => expect(await isLinked()).toBe(true));
    expect(await onRecord()).toBe(other.system_identifier);
  });

  test.runIf(IS_NIGHTLY)('that changes its cluster between two inventories loses no branch', async () => {
    const db = openDatabase(gateway.database);
    await insertProject(db, identity.host_id);
    const branch = await insertBranch(db, 'active');
    let inventories = 0;
    await startAgent({
      holds: () => {
        inventories += 1;
        return inventories === 1 ? inventory : other;
      },
    });
    await eventually(async () => expect(inventories).toBe(2));
    // Replies arrive in order, so the second was processed.
    await takeInventory();
    // Its alarm runs after the first reconciliation.
    await startAgent({ holds: () => other });
    await eventually(async () => expect(await isLinked()).toBe(false));
    expect(await readBranch(db, branch)).toEqual({ status: 'active', events: [] });
  });
});

test.runIf(IS_NIGHTLY)('an idle link survives many heartbeats', async () => {
  const agent = await startAgent();
  await new Promise((resolve) => setTimeout(resolve, 1.5 * quick.silence));
  expect(await gateway.isLinked(identity.host_id)).toBe(true);
  expect(agent.ups).toBe(1);
});

test('a hibernated object continues to serve its socket', async () => {
  const agent = await startAgent();
  await takeInventory();
  await gateway.hibernate(identity.host_id);
  expect(await takeInventory()).toEqual({ ok: true, value: inventory });
  expect(agent.ups).toBe(1);
});

test('without a link a call fails immediately', async () => {
  expect(await takeInventory()).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
});

test('a call ends immediately when its agent disconnects', async () => {
  const agent = await startAgent({ handle: () => never });
  const outcome = dropProject();
  await eventually(async () => expect(asked).toContain('project.drop'));
  agent.leave();
  expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
});

test('a call ends immediately when its socket breaks', async () => {
  const { socket, hear, answer } = await dialByHand();
  socket.send(await answer(1));
  await hear(2);
  const outcome = dropProject();
  await eventually(async () => expect(await hear(3)).toHaveProperty('method'));
  // A call that ends at its deadline has another failure code.
  socket.terminate();
  expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
});

test.runIf(IS_NIGHTLY)(
  'when the network drops all packets, both sides notice and the agent reconnects',
  async () => {
    const proxy = await TcpProxy.start(gateway.port);
    try {
      const agent = await startAgent({ gatewayUrl: `http://127.0.0.1:${proxy.port}`, handle: () => never });
      const outcome = dropProject();
      await eventually(async () => expect(asked).toContain('project.drop'));
      proxy.freeze();
      expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
      await eventually(async () => expect(agent.ups).toBe(2));
      expect(agent.events).toContainEqual(expect.objectContaining({ event: 'link.down', reason: 'silent' }));
      expect(await gateway.isLinked(identity.host_id)).toBe(true);
    } finally {
      proxy.stop();
    }
  },
);

test('after a crash of the gateway the agent reconnects, and old epochs remain invalid', async () => {
  const agent = await startAgent();
  const { port } = gateway;
  await gateway.stop();
  await eventually(async () => expect(agent.events.at(-1)?.event).toBe('link.down'));
  gateway = await startLinkGateway({ stateDir, bounds: quick, port });
  await eventually(async () => expect(agent.ups).toBe(2));
  expect(await takeInventory()).toEqual({ ok: true, value: inventory });
  const late = await dialByHand();
  late.socket.send(await late.answer(1));
  expect(await late.closed).toBe(CLOSES.refused);
  expect(late.messages[1]).toEqual({ type: 'refusal', reason: 'stale_epoch' });
});

test('a replayed answer does not displace the live link', async () => {
  const live = await dialByHand();
  const recorded = await live.answer(1);
  live.socket.send(recorded);
  expect(await live.hear(2)).toEqual({ type: 'welcome', epoch: 1 });
  const thief = await dialByHand();
  thief.socket.send(recorded);
  expect(await thief.closed).toBe(CLOSES.refused);
  expect(thief.messages[1]).toEqual({ type: 'refusal', reason: 'nonce' });
  expect(await gateway.isLinked(identity.host_id)).toBe(true);
  live.socket.close();
  await live.closed;
});

test('a second agent of the same host takes over, and the first one waits', async () => {
  const first = await startAgent();
  const second = await startAgent();
  await eventually(async () => {
    expect(first.events.at(-1)).toMatchObject({ event: 'link.down', reason: 'displaced' });
  });
  expect(first.events.at(-1)?.dial_again_in_ms).toBeGreaterThanOrEqual(15_000);
  expect(await takeInventory()).toEqual({ ok: true, value: inventory });
  expect(second.ups).toBe(1);
});

test('a removed host is disconnected, and its key is refused', async () => {
  const agent = await startAgent();
  expect((await gateway.asOperator('DELETE', `/hosts/${identity.host_id}`)).status).toBe(204);
  await eventually(async () => {
    const reasons = agent.events.flatMap(({ event, reason }) => (event === 'link.down' ? [reason] : []));
    expect(reasons).toEqual(['removed', expect.stringContaining('status 401')]);
  });
  expect(agent.events.at(-1)?.dial_again_in_ms).toBeGreaterThanOrEqual(15_000);
  expect(await gateway.isLinked(identity.host_id)).toBe(false);
});

test('a host that is removed during its handshake is disconnected too', async () => {
  const { socket, closed, hear, answer } = await dialByHand();
  await gateway.database.exec(`delete from hosts where id = '${identity.host_id}'`);
  socket.send(await answer(1));
  expect(await hear(2)).toMatchObject({ type: 'welcome' });
  expect(await closed).toBe(CLOSES.removed);
});

test.runIf(IS_NIGHTLY)('a silent socket is closed', async () => {
  const { socket, closed } = await dialByHand();
  // workerd sends a close frame on such a socket, but leaves closing the connection to the peer.
  await eventually(async () => expect(socket.readyState).toBe(WebSocket.CLOSING));
  socket.terminate();
  expect(await closed).toBe(CLOSES.handshake_late);
});

test('a message over the size limit closes the link', async () => {
  const { socket, closed, hear, answer } = await dialByHand();
  socket.send(await answer(1));
  await hear(2);
  socket.send(JSON.stringify({ x: 'y'.repeat(BOUNDS.messageBytes) }));
  expect(await closed).toBe(CLOSES.oversize);
});

test('a call over the limit is rejected, and the others continue', async () => {
  const work = Promise.withResolvers<unknown>();
  await startAgent({ handle: () => work.promise });
  const calls = Array.from({ length: BOUNDS.callsInFlight }, () =>
    gateway.call(identity.host_id, 'project.drop', { ...ids, job_id: crypto.randomUUID() }),
  );
  await eventually(async () => {
    expect(asked.filter((method) => method === 'project.drop')).toHaveLength(BOUNDS.callsInFlight);
  });
  expect(await dropProject()).toMatchObject({ failure: { code: 'HOST_BUSY' } });
  work.resolve({ dropped_databases: 0 });
  expect(await Promise.all(calls)).toEqual(calls.map(() => ({ ok: true, value: { dropped_databases: 0 } })));
});
