import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { importJWK } from 'jose';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { WebSocket } from 'ws';
import type { Handle } from '../../agent/link/dispatch.ts';
import { enrol } from '../../agent/link/enrol.ts';
import type { HostIdentity } from '../../agent/link/identity.ts';
import { runLink } from '../../agent/link/run-link.ts';
import { openDatabase } from '../../edge/database/database.ts';
import { BOUNDS } from '../../shared/protocol/bounds.ts';
import { CLOSES } from '../../shared/protocol/closes.ts';
import type { Result } from '../../shared/protocol/operations.ts';
import { eventually } from '../support/eventually.ts';
import { signAnswer } from '../support/host/host-key.ts';
import { insertBranch, insertDeletion, insertProject, readBranch } from '../support/records/records.ts';
import { startFreezingProxy } from '../support/stack/freezing-proxy.ts';
import { type LinkGateway, startLinkGateway } from '../support/worker/link-gateway.ts';

vi.setConfig({ testTimeout: 20_000, hookTimeout: 30_000 });

/** The agent's real link against the real object in workerd. Only the operations are played. */

const quick = { heartbeat: 500, silence: 1_000, handshakeTime: 2_000 };
const bounds = { ...BOUNDS, ...quick };
const inventory: Result<'host.inventory'> = { system_identifier: '1', branches: [], projects: [] };
const ids = { job_id: crypto.randomUUID(), project_id: crypto.randomUUID() };

let stateDir: string;
let gateway: LinkGateway;
let identity: HostIdentity;
let agents: AbortController[];
/** Methods the agents were asked for, in order. */
let asked: string[];
const never = new Promise<never>(() => {});

beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-link-'));
  agents = [];
  asked = [];
  gateway = await startLinkGateway({ stateDir, bounds: quick });
  const { enrolment_token } = await gateway.registerHost('a');
  identity = await enrol({
    gatewayUrl: gateway.url,
    stateDir: join(stateDir, 'agent'),
    token: enrolment_token,
  });
});

afterEach(async () => {
  for (const agent of agents) agent.abort();
  await gateway.stop();
  await rm(stateDir, { recursive: true });
});

interface Agent {
  /** How often the link has come up. */
  ups: number;
  events: { event: string; [field: string]: unknown }[];
  leave: () => void;
}

/** An agent that is linked when this returns. */
async function startAgent(
  options: { handle?: Handle; gatewayUrl?: string; holds?: () => typeof inventory } = {},
): Promise<Agent> {
  const controller = new AbortController();
  agents.push(controller);
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
      if (method === 'host.inventory') return options.holds?.() ?? inventory;
      return options.handle ? options.handle(method, params) : { dropped_databases: 0 };
    },
  });
  await eventually(async () => expect(agent.ups).toBe(1));
  return agent;
}

const takeInventory = () => gateway.call(identity.host_id, 'host.inventory', {});
const dropProject = () => gateway.call(identity.host_id, 'project.drop', ids);

/** A socket that speaks the protocol by hand. */
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

test('a call goes there and back, and every link-up reconciles the host', async () => {
  await startAgent();
  await eventually(async () => expect(asked).toEqual(['host.inventory']));
  expect(await takeInventory()).toEqual({ ok: true, result: inventory });
});

describe('a host that comes up with another cluster', () => {
  const other = { ...inventory, system_identifier: '2' };
  const isLinked = () => gateway.isLinked(identity.host_id);
  const onRecord = async () =>
    gateway.database.prepare('select system_identifier from hosts').first('system_identifier');

  /** An agent has linked, told its cluster, and left. */
  async function firstCluster() {
    const agent = await startAgent();
    await eventually(async () => expect(await onRecord()).toBe(inventory.system_identifier));
    expect(await isLinked()).toBe(true);
    agent.leave();
  }

  test('is left alone and gets no work until it has the first one again', async () => {
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

  test('goes on with that one when an operator has accepted it', async () => {
    await firstCluster();
    await startAgent({ holds: () => other });
    await eventually(async () => expect(await isLinked()).toBe(false));
    await gateway.database.exec('update hosts set system_identifier = null');
    await eventually(async () => expect(await isLinked()).toBe(true));
    expect(await onRecord()).toBe(other.system_identifier);
  });

  test('between two looks at what it lacks loses nothing', async () => {
    const db = openDatabase(gateway.database);
    await insertProject(db, identity.host_id);
    const branch = await insertBranch(db, 'active');
    let looks = 0;
    await startAgent({
      holds: () => {
        looks += 1;
        return looks === 1 ? inventory : other;
      },
    });
    await eventually(async () => expect(looks).toBe(2));
    // Replies come in order: the second has been heard.
    await takeInventory();
    // Its alarm runs when the first reconciliation is over.
    await startAgent({ holds: () => other });
    await eventually(async () => expect(await isLinked()).toBe(false));
    expect(await readBranch(db, branch)).toEqual({ status: 'active', events: [] });
  });
});

test('an idle link outlives many beats', async () => {
  const agent = await startAgent();
  await new Promise((resolve) => setTimeout(resolve, 2.5 * quick.silence));
  expect(await gateway.isLinked(identity.host_id)).toBe(true);
  expect(agent.ups).toBe(1);
});

test('an object that was put to sleep serves the same socket on', async () => {
  const agent = await startAgent();
  await takeInventory();
  await gateway.hibernate(identity.host_id);
  expect(await takeInventory()).toEqual({ ok: true, result: inventory });
  expect(agent.ups).toBe(1);
});

test('nobody linked: the call fails at once', async () => {
  expect(await takeInventory()).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
});

test('an agent that leaves during a call ends it at once', async () => {
  const agent = await startAgent({ handle: () => never });
  const outcome = dropProject();
  await eventually(async () => expect(asked).toContain('project.drop'));
  const left = performance.now();
  agent.leave();
  expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  expect(performance.now() - left).toBeLessThan(1_000);
});

test('a socket that breaks during a call ends it at once', async () => {
  const { socket, hear, answer } = await dialByHand();
  socket.send(await answer(1));
  await hear(2);
  const outcome = dropProject();
  await eventually(async () => expect(await hear(3)).toHaveProperty('method'));
  const broke = performance.now();
  socket.terminate();
  expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  expect(performance.now() - broke).toBeLessThan(1_000);
});

test('a network that swallows everything: both sides notice, the agent dials again', async () => {
  const proxy = await startFreezingProxy(gateway.port);
  try {
    const agent = await startAgent({ gatewayUrl: proxy.url, handle: () => never });
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
});

test('the gateway dies and comes back: the agent links up again by itself, and old epochs stay used', async () => {
  const agent = await startAgent();
  const { port } = gateway;
  await gateway.stop();
  await eventually(async () => expect(agent.events.at(-1)?.event).toBe('link.down'));
  gateway = await startLinkGateway({ stateDir, bounds: quick, port });
  await eventually(async () => expect(agent.ups).toBe(2));
  expect(await takeInventory()).toEqual({ ok: true, result: inventory });
  const late = await dialByHand();
  late.socket.send(await late.answer(1));
  expect(await late.closed).toBe(CLOSES.refused);
  expect(late.messages[1]).toEqual({ type: 'refusal', reason: 'stale_epoch' });
});

test('an answer that was overheard does not displace the live link', async () => {
  const live = await dialByHand();
  const overheard = await live.answer(1);
  live.socket.send(overheard);
  expect(await live.hear(2)).toEqual({ type: 'welcome', epoch: 1 });
  const thief = await dialByHand();
  thief.socket.send(overheard);
  expect(await thief.closed).toBe(CLOSES.refused);
  expect(thief.messages[1]).toEqual({ type: 'refusal', reason: 'nonce' });
  expect(await gateway.isLinked(identity.host_id)).toBe(true);
  live.socket.close();
  await live.closed;
});

test('a second agent of the same host takes over; the first one waits and does not fight', async () => {
  const first = await startAgent();
  const second = await startAgent();
  await eventually(async () => {
    expect(first.events.at(-1)).toMatchObject({ event: 'link.down', reason: 'displaced' });
  });
  expect(first.events.at(-1)?.dial_again_in_ms).toBeGreaterThanOrEqual(15_000);
  expect(await takeInventory()).toEqual({ ok: true, result: inventory });
  expect(second.ups).toBe(1);
});

test('a mute socket is closed', async () => {
  const { socket, closed } = await dialByHand();
  // workerd says goodbye to a socket that never spoke, but leaves it to the other side to hang up.
  await eventually(async () => expect(socket.readyState).toBe(WebSocket.CLOSING));
  socket.terminate();
  expect(await closed).toBe(CLOSES.handshake_late);
});

test('what is over the message size closes the link', async () => {
  const { socket, closed, hear, answer } = await dialByHand();
  socket.send(await answer(1));
  await hear(2);
  socket.send(JSON.stringify({ x: 'y'.repeat(BOUNDS.messageBytes) }));
  expect(await closed).toBe(CLOSES.oversize);
});

test('too many calls: the one over the bound is refused, the others go on', async () => {
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
  expect(await Promise.all(calls)).toEqual(calls.map(() => ({ ok: true, result: { dropped_databases: 0 } })));
});
