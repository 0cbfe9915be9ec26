import { decodeJwt, decodeProtectedHeader } from 'jose';
import { beforeEach, describe, expect, test } from 'vitest';
import { AgentLink, type LinkEnd } from '../../../agent/link/agent-link.ts';
import { Dispatcher } from '../../../agent/link/dispatch.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import { CLOSES } from '../../../shared/protocol/closes.ts';
import { HEARTBEAT } from '../../../shared/protocol/frames.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { makeHostKey } from '../../support/host/host-key.ts';

const { privateKey: key } = await makeHostKey();
const hostId = 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f';
const challenge = { type: 'challenge', protocol: PROTOCOL_VERSION, nonce: 'n'.repeat(43), epoch: 0 };
const inventory = { system_identifier: '1', free_bytes: 0, branches: [], projects: [], snapshots: [] };

let clock: FakeClock;
/** Milliseconds that the host's clock is ahead. */
let hostAhead: number;
let sent: string[];
let closedWith: number | null;
let linkUps: number;
let handle: (method: string) => Promise<unknown>;
let link: AgentLink;

beforeEach(() => {
  clock = new FakeClock();
  hostAhead = 0;
  sent = [];
  closedWith = null;
  linkUps = 0;
  handle = async () => inventory;
  link = new AgentLink({
    transport: {
      send: (text) => sent.push(text),
      close: (code) => {
        closedWith ??= code;
      },
    },
    hostId,
    key,
    audience: 'gateway.example.com',
    dispatcher: new Dispatcher({ handle: (method) => handle(method), log: () => {}, bounds: BOUNDS }),
    clock,
    unixTime: () => clock.now() + hostAhead,
    bounds: BOUNDS,
    log: () => {},
    onLinked: () => {
      linkUps += 1;
    },
  });
});

const say = (message: unknown) => link.receive(JSON.stringify(message));
const lastSent = () => JSON.parse(sent.at(-1) ?? 'null');
const answeredEpoch = () => decodeJwt(lastSent().token).epoch as number;

async function linkUp(): Promise<void> {
  await say(challenge);
  await say({ type: 'welcome', epoch: answeredEpoch() });
}

const request = (method: string, params: object = {}) => ({
  jsonrpc: '2.0',
  id: crypto.randomUUID(),
  method,
  params,
});

describe('the handshake', () => {
  test('the answer binds host, gateway, nonce, epoch and version', async () => {
    await say(challenge);
    const { token } = lastSent();
    expect(decodeProtectedHeader(token)).toEqual({ alg: 'EdDSA', typ: 'branchgate-link+jwt' });
    const iat = clock.now() / 1000;
    expect(decodeJwt(token)).toEqual({
      iss: hostId,
      aud: 'gateway.example.com',
      nonce: challenge.nonce,
      epoch: clock.now(),
      protocol: PROTOCOL_VERSION,
      iat,
      exp: iat + 60,
    });
  });

  test('the epoch is above the last one of the edge, even if the clock was set back', async () => {
    const epoch = clock.now() + 1e9;
    await say({ ...challenge, epoch });
    expect(answeredEpoch()).toBe(epoch + 1);
  });

  test('a challenge of a later protocol is answered, so that the edge can send its refusal', async () => {
    await say({ ...challenge, protocol: PROTOCOL_VERSION + 1, hint: 'new' });
    expect(lastSent().type).toBe('answer');
  });

  test('a welcome establishes the link', async () => {
    await linkUp();
    expect(linkUps).toBe(1);
    expect(closedWith).toBeNull();
  });

  test.each([
    ['stale_epoch', 'refused: a newer link of this host exists: stop the other agent with this identity'],
    ['a_reason_of_the_future', 'refused: a_reason_of_the_future'],
  ])('a refusal (%s) ends the link as refused', async (reason, logged) => {
    await say(challenge);
    await say({ type: 'refusal', reason });
    expect(await link.ended).toEqual<LinkEnd>({ reason: logged, linkedFor: 0, refused: true });
  });

  test('the agent leaves a silent edge when the handshake time is over', async () => {
    clock.advance(BOUNDS.handshakeTime);
    expect(closedWith).toBe(CLOSES.handshake_late);
    expect(clock.waiting).toBe(0);
  });
});

describe('a hostile edge', () => {
  test.each<[string, unknown[]]>([
    ['a call before the handshake', [request('host.inventory')]],
    ['a welcome without a challenge', [{ type: 'welcome', epoch: 1 }]],
    ['two challenges', [challenge, challenge]],
    ['a call before the welcome', [challenge, request('host.inventory')]],
    ['a welcome to another epoch', [challenge, { type: 'welcome', epoch: 1 }]],
    ['a challenge with a malformed nonce', [{ ...challenge, nonce: 'short' }]],
    ['a challenge with an epoch beyond the safe integers', [{ ...challenge, epoch: 2 ** 53 }]],
  ])('%s ends the link', async (_name, messages) => {
    for (const message of messages) await say(message);
    expect(closedWith).toBe(CLOSES.malformed);
    expect(linkUps).toBe(0);
  });

  test('a second challenge while the first is being answered ends the link', async () => {
    await Promise.all([say(challenge), say(challenge)]);
    expect(closedWith).toBe(CLOSES.malformed);
    expect(sent).toEqual([]);
  });

  test.each<[string, unknown, number]>([
    ['bytes', new Uint8Array(3), CLOSES.not_text],
    ['an oversized message', 'x'.repeat(BOUNDS.messageBytes + 1), CLOSES.oversize],
    ['invalid JSON', 'hello', CLOSES.not_json],
    ['too deeply nested JSON', '['.repeat(17) + ']'.repeat(17), CLOSES.too_deep],
    ['a batch', '[]', CLOSES.malformed],
    ['a notification', '{"jsonrpc":"2.0","method":"host.describe","params":{}}', CLOSES.malformed],
    [
      'parameters by position',
      JSON.stringify({ ...request('host.describe'), params: [1] }),
      CLOSES.malformed,
    ],
  ])('on the live link: %s', async (_name, data, code) => {
    await linkUp();
    await link.receive(data);
    expect(closedWith).toBe(code);
  });
});

describe('the live link', () => {
  test('answers calls', async () => {
    await linkUp();
    const call = request('host.inventory');
    await say(call);
    expect(lastSent()).toEqual({ jsonrpc: '2.0', id: call.id, result: inventory });
  });

  test("sends heartbeats, and is lost after two without a response, independent of the host's clock", async () => {
    await linkUp();
    hostAhead = -3_600_000;
    sent = [];
    clock.advance(BOUNDS.heartbeat);
    expect(sent).toEqual([HEARTBEAT.request]);
    await link.receive(HEARTBEAT.response);
    clock.advance(BOUNDS.heartbeat);
    expect(closedWith).toBeNull();
    clock.advance(BOUNDS.heartbeat);
    expect(closedWith).toBe(CLOSES.silent);
    expect(await link.ended).toEqual({ reason: 'silent', linkedFor: 3 * BOUNDS.heartbeat, refused: false });
  });

  test('a reply over the message size becomes an error', async () => {
    await linkUp();
    const branch = { project_id: hostId, branch_id: hostId, database: 'db_a_b', state: 'ready' };
    handle = async () => ({ ...inventory, branches: Array.from({ length: 10_000 }, () => branch) });
    await say(request('host.inventory'));
    expect(lastSent().error.data).toEqual({ code: 'INTERNAL' });
    expect(closedWith).toBeNull();
  });

  test('a reply is dropped when its link is gone', async () => {
    await linkUp();
    const work = Promise.withResolvers<unknown>();
    handle = () => work.promise;
    const call = say(request('host.inventory'));
    link.closed(1006, 'gone');
    const before = sent.length;
    work.resolve(inventory);
    await call;
    expect(sent).toHaveLength(before);
  });

  test('a displaced link ends as refused', async () => {
    await linkUp();
    link.closed(CLOSES.displaced, 'displaced');
    expect((await link.ended).refused).toBe(true);
  });

  test('leaving stops the heartbeats', async () => {
    await linkUp();
    link.leave();
    expect(closedWith).toBe(CLOSES.leaving);
    expect(clock.waiting).toBe(0);
    expect((await link.ended).refused).toBe(false);
  });
});

describe('notifications', () => {
  const measurement = {
    project_id: crypto.randomUUID(),
    observed_at: new Date(0).toISOString(),
    branches: [],
  };

  test('are sent over an established link', async () => {
    await linkUp();
    link.notify('measurement', measurement);
    expect(lastSent()).toEqual({ jsonrpc: '2.0', method: 'measurement', params: measurement });
  });

  test('are dropped before the link is established and after it ended', async () => {
    link.notify('measurement', measurement);
    await say(challenge);
    link.notify('measurement', measurement);
    await say({ type: 'welcome', epoch: answeredEpoch() });
    const { length } = sent;
    link.closed(1006, '');
    link.notify('measurement', measurement);
    expect(sent).toHaveLength(length);
  });

  test('over the message size are dropped, and the link stays up', async () => {
    await linkUp();
    const { length } = sent;
    link.notify('measurement', { ...measurement, observed_at: 'x'.repeat(BOUNDS.messageBytes) });
    expect(sent).toHaveLength(length);
    expect(closedWith).toBeNull();
  });
});
