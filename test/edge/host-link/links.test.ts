import { beforeEach, describe, expect, test } from 'vitest';
import { type LinkSocket, Links, type SocketState } from '../../../edge/host-link/links.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import { CLOSES } from '../../../shared/protocol/closes.ts';
import type { NotificationFrame } from '../../../shared/protocol/frames.ts';
import { OPERATIONS } from '../../../shared/protocol/operations.ts';
import { PREVIOUS_VERSION, PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';
import { FakeClock } from '../../support/fake-clock.ts';
import { type AnswerInput, makeHostKey, signAnswer } from '../../support/host/host-key.ts';

const host = await makeHostKey();
const caller = {
  hostId: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f',
  audience: 'gateway.example.com',
  publicKey: host.publicKey,
};
const inventory = { system_identifier: '1', free_bytes: 0, branches: [], projects: [], snapshots: [] };

/** The agent's end of a link, driven by the test. */
class ScriptedSocket implements LinkSocket {
  sent: Record<string, unknown>[] = [];
  closedWith: number | null = null;
  heartbeatAt = 0;
  #state: SocketState = { phase: 'closed' };

  send(text: string) {
    if (this.closedWith !== null) throw new TypeError('the socket is closed');
    this.sent.push(JSON.parse(text));
  }
  close(code: number) {
    this.closedWith ??= code;
  }
  state = () => this.#state;
  setState(state: SocketState) {
    this.#state = structuredClone(state);
  }
  lastHeartbeat = () => this.heartbeatAt;
}

let clock: FakeClock;
let sockets: ScriptedSocket[];
let newestEpoch: number;
let linkUps: number;
let notified: NotificationFrame[];
let links: Links;

/** A new object with the existing sockets, as after hibernation. */
const wake = () =>
  new Links({
    sockets: () => sockets,
    epoch: {
      newest: () => newestEpoch,
      remember: (epoch) => {
        newestEpoch = epoch;
      },
    },
    onLinked: () => {
      linkUps += 1;
    },
    onNotification: (notification) => notified.push(notification),
    log: () => {},
    clock,
    bounds: BOUNDS,
  });

beforeEach(() => {
  clock = new FakeClock();
  sockets = [];
  newestEpoch = 0;
  linkUps = 0;
  notified = [];
  links = wake();
});

function dial(): ScriptedSocket {
  const socket = new ScriptedSocket();
  sockets.push(socket);
  links.accept(socket, caller);
  return socket;
}

async function answerOf(socket: ScriptedSocket, claims: Partial<AnswerInput> = {}): Promise<string> {
  const challenge = socket.sent[0] as { nonce: string; epoch: number };
  const token = await signAnswer(host.privateKey, {
    iss: caller.hostId,
    aud: caller.audience,
    nonce: challenge.nonce,
    epoch: challenge.epoch + 1,
    iat: Math.floor(clock.now() / 1000),
    ...claims,
  });
  return JSON.stringify({ type: 'answer', token });
}

async function dialAndAnswer(claims: Partial<AnswerInput> = {}): Promise<ScriptedSocket> {
  const socket = dial();
  await links.receive(socket, await answerOf(socket, claims));
  return socket;
}

const callsOn = (socket: ScriptedSocket) => socket.sent.filter((frame) => 'method' in frame);
const reply = (socket: ScriptedSocket, frame: Record<string, unknown>) =>
  links.receive(socket, JSON.stringify({ jsonrpc: '2.0', id: callsOn(socket).at(-1)?.id, ...frame }));

describe('the handshake', () => {
  test('challenge, answer, welcome', async () => {
    const socket = await dialAndAnswer();
    expect(socket.sent).toEqual([
      {
        type: 'challenge',
        protocol: PROTOCOL_VERSION,
        nonce: expect.stringMatching(/^[\w-]{43}$/),
        epoch: 0,
      },
      { type: 'welcome', epoch: 1 },
    ]);
    expect(links.linked()).toBe(true);
    expect(linkUps).toBe(1);
  });

  test.each<[string, Partial<AnswerInput>, string]>([
    ['for another nonce', { nonce: 'm'.repeat(43) }, 'nonce'],
    ['with the epoch of the live link', { epoch: 5 }, 'stale_epoch'],
    ['with an older epoch', { epoch: 4 }, 'stale_epoch'],
  ])('an answer %s is refused, and the live link stays', async (_name, claims, reason) => {
    const live = await dialAndAnswer({ epoch: 5 });
    const other = await dialAndAnswer(claims);
    expect(other.sent.at(-1)).toEqual({ type: 'refusal', reason });
    expect(other.closedWith).toBe(CLOSES.refused);
    expect(live.closedWith).toBeNull();
    expect(linkUps).toBe(1);
    const outcome = links.call('host.inventory', {});
    await reply(live, { result: inventory });
    expect(await outcome).toEqual({ ok: true, value: inventory });
  });

  test('a replayed answer is refused on another socket', async () => {
    const live = dial();
    const overheard = await answerOf(live);
    await links.receive(live, overheard);
    const thief = dial();
    await links.receive(thief, overheard);
    expect(thief.sent.at(-1)).toEqual({ type: 'refusal', reason: 'nonce' });
    expect(live.closedWith).toBeNull();
  });

  test('a second answer during the verification of the first closes the socket', async () => {
    const socket = dial();
    const answer = await answerOf(socket);
    await Promise.all([links.receive(socket, answer), links.receive(socket, answer)]);
    expect(socket.closedWith).toBe(CLOSES.malformed);
    expect(links.linked()).toBe(false);
  });

  test('of two concurrent handshakes only one link remains', async () => {
    const first = dial();
    const second = dial();
    const answers = [await answerOf(first), await answerOf(second, { epoch: 2 })] as const;
    await Promise.all([links.receive(first, answers[0]), links.receive(second, answers[1])]);
    expect([first, second].filter(({ closedWith }) => closedWith === null)).toEqual([second]);
    expect(newestEpoch).toBe(2);
  });

  test('a newer epoch displaces the live link', async () => {
    const old = await dialAndAnswer();
    const newer = await dialAndAnswer();
    expect(old.closedWith).toBe(CLOSES.displaced);
    expect(newer.closedWith).toBeNull();
  });

  test('an epoch remains invalid after its link is closed', async () => {
    const first = await dialAndAnswer({ epoch: 9 });
    links.lost(first);
    expect((await dialAndAnswer({ epoch: 9 })).closedWith).toBe(CLOSES.refused);
  });

  test('a silent socket is closed at the end of the handshake time', () => {
    const socket = dial();
    clock.advance(BOUNDS.handshakeTime - 1);
    expect(socket.closedWith).toBeNull();
    clock.advance(1);
    expect(socket.closedWith).toBe(CLOSES.handshake_late);
  });

  test('a late answer is ignored', async () => {
    const socket = dial();
    const answer = await answerOf(socket);
    clock.advance(BOUNDS.handshakeTime);
    await links.receive(socket, answer);
    expect(links.linked()).toBe(false);
  });

  test('too many unfinished handshakes drop the oldest of them, never the live link', async () => {
    const live = await dialAndAnswer();
    const mute = Array.from({ length: BOUNDS.unfinishedHandshakes }, () => {
      clock.advance(1);
      return dial();
    });
    expect(mute.every(({ closedWith }) => closedWith === null)).toBe(true);
    clock.advance(1);
    const next = dial();
    expect(mute.map(({ closedWith }) => closedWith).filter(Number)).toEqual([CLOSES.crowded]);
    expect(mute[0]?.closedWith).toBe(CLOSES.crowded);
    expect([live.closedWith, next.closedWith]).toEqual([null, null]);
  });
});

describe('a hostile agent', () => {
  const bad = {
    not_text: new ArrayBuffer(8),
    oversize: 'x'.repeat(BOUNDS.messageBytes + 1),
    not_json: 'hello',
    too_deep: '['.repeat(100) + ']'.repeat(100),
    malformed: '{"jsonrpc":"2.0","id":1,"result":{}}',
  } as const;
  const faults = Object.keys(bad) as (keyof typeof bad)[];

  test.each(faults)('%s in the handshake closes the socket with its code', async (fault) => {
    const live = await dialAndAnswer();
    const socket = dial();
    await links.receive(socket, bad[fault]);
    expect(socket.closedWith).toBe(CLOSES[fault]);
    expect(live.closedWith).toBeNull();
  });

  test.each(faults)('%s on the live link closes it and ends its calls immediately', async (fault) => {
    const socket = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    await links.receive(socket, bad[fault]);
    expect(socket.closedWith).toBe(CLOSES[fault]);
    expect(await outcome).toMatchObject({ ok: false, failure: { code: 'HOST_UNAVAILABLE' } });
  });

  test.each<[string, Record<string, unknown>]>([
    ['a request of its own', { method: 'host.describe', params: {} }],
    [
      'a result and an error',
      { result: inventory, error: { code: 1, message: '', data: { code: 'INTERNAL' } } },
    ],
    ['neither result nor error', {}],
    ['an error without a code of ours', { error: { code: 1, message: 'no' } }],
    ['an error with an unknown code', { error: { code: 1, message: 'no', data: { code: 'constructor' } } }],
    ['another version of JSON-RPC', { jsonrpc: '1.0', result: inventory }],
    ['a batch', { 0: {} }],
  ])('%s is malformed', async (_name, frame) => {
    const socket = await dialAndAnswer();
    links.call('host.inventory', {});
    await reply(socket, frame);
    expect(socket.closedWith).toBe(CLOSES.malformed);
  });

  test('a malformed result is not passed on', async () => {
    const socket = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    await reply(socket, { result: { branches: 'all of them', projects: [] } });
    expect(await outcome).toMatchObject({ ok: false, failure: { code: 'INTERNAL' } });
    expect(links.linked()).toBe(true);
  });

  test('replies without a call and second replies are dropped', async () => {
    const socket = await dialAndAnswer();
    await reply(socket, { id: crypto.randomUUID(), result: inventory });
    const outcome = links.call('host.inventory', {});
    await reply(socket, { result: inventory });
    await reply(socket, { error: { code: -32000, message: 'no', data: { code: 'HOST_FULL' } } });
    expect(await outcome).toEqual({ ok: true, value: inventory });
    expect(socket.closedWith).toBeNull();
  });
});

describe('calls', () => {
  test('without a link', async () => {
    expect(await links.call('host.inventory', {})).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  });

  test('a failure is returned with its code', async () => {
    const socket = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    await reply(socket, { error: { code: -32000, message: 'full', data: { code: 'HOST_FULL' } } });
    expect(await outcome).toEqual({ ok: false, failure: { code: 'HOST_FULL', message: 'full' } });
    expect(clock.waiting).toBe(0);
  });

  test('up to the limit', async () => {
    const socket = await dialAndAnswer();
    const calls = Array.from({ length: BOUNDS.callsInFlight }, () => links.call('host.inventory', {}));
    expect(await links.call('host.inventory', {})).toMatchObject({ failure: { code: 'HOST_BUSY' } });
    await reply(socket, { result: inventory });
    await calls.at(-1);
    links.call('host.inventory', {});
    expect(callsOn(socket)).toHaveLength(BOUNDS.callsInFlight + 1);
  });

  test('a call without a reply ends at its deadline, and a later reply is dropped', async () => {
    const socket = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    const { deadline } = OPERATIONS['host.inventory'];
    for (let waited = 0; waited < deadline; waited += 1_000) {
      socket.heartbeatAt = clock.now();
      clock.advance(1_000);
    }
    expect(await outcome).toMatchObject({ failure: { code: 'HOST_TIMEOUT' } });
    const next = links.call('host.describe', {});
    await links.receive(
      socket,
      JSON.stringify({ jsonrpc: '2.0', id: callsOn(socket)[0]?.id, result: inventory }),
    );
    links.lost(socket);
    expect(await next).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  });

  test('end when the link closes', async () => {
    const socket = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    links.lost(socket);
    expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  });

  test('end when the socket is closed but the object was not notified', async () => {
    const socket = await dialAndAnswer();
    socket.close(1006);
    expect(await links.call('host.inventory', {})).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
  });

  test('end when the link is displaced, and replies on the old link are dropped', async () => {
    const old = await dialAndAnswer();
    const outcome = links.call('host.inventory', {});
    const newer = await dialAndAnswer();
    expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
    const again = links.call('host.inventory', {});
    await links.receive(
      old,
      JSON.stringify({
        jsonrpc: '2.0',
        id: callsOn(newer)[0]?.id,
        result: { branches: [], projects: 'forged' },
      }),
    );
    await reply(newer, { result: inventory });
    expect(await again).toEqual({ ok: true, value: inventory });
  });

  test('a link without a heartbeat for two intervals is lost, also during a long call', async () => {
    const socket = await dialAndAnswer();
    const outcome = links.call('project.drop', {
      job_id: crypto.randomUUID(),
      project_id: crypto.randomUUID(),
    });
    clock.advance(BOUNDS.silence);
    expect(links.linked()).toBe(true);
    clock.advance(BOUNDS.heartbeat);
    expect(await outcome).toMatchObject({ failure: { code: 'HOST_UNAVAILABLE' } });
    expect(socket.closedWith).toBe(CLOSES.silent);
    expect(links.linked()).toBe(false);
  });

  test('a link with heartbeats stays', async () => {
    const socket = await dialAndAnswer();
    for (let n = 0; n < 10; n += 1) {
      clock.advance(BOUNDS.heartbeat);
      socket.heartbeatAt = clock.now();
    }
    expect(links.linked()).toBe(true);
  });
});

test('an object continues after hibernation', async () => {
  const live = await dialAndAnswer({ epoch: 3 });
  const unfinished = dial();
  links = wake();
  expect(links.linked()).toBe(true);
  const outcome = links.call('host.inventory', {});
  await reply(live, { result: inventory });
  expect(await outcome).toEqual({ ok: true, value: inventory });
  await links.receive(unfinished, await answerOf(unfinished));
  expect(live.closedWith).toBe(CLOSES.displaced);
  expect(links.linked()).toBe(true);
});

describe('notifications', () => {
  const notification = { jsonrpc: '2.0', method: 'measurement', params: { anything: 1 } };
  const notify = (socket: ScriptedSocket, frame: object) => links.receive(socket, JSON.stringify(frame));

  test('on the live link are passed on, also after hibernation', async () => {
    const socket = await dialAndAnswer();
    await notify(socket, notification);
    links = wake();
    await notify(socket, notification);
    expect(notified).toEqual([notification, notification]);
  });

  test('on a displaced link are not', async () => {
    const old = await dialAndAnswer();
    await dialAndAnswer();
    await notify(old, notification);
    expect(notified).toEqual([]);
  });

  test('before the welcome end the link', async () => {
    const socket = dial();
    await notify(socket, notification);
    expect(socket.closedWith).toBe(CLOSES.malformed);
    expect(notified).toEqual([]);
  });

  test.each([
    { ...notification, method: 'project.drop' },
    { ...notification, params: [] },
    { ...notification, more: 1 },
    { method: 'measurement', params: {} },
  ])('of a malformed shape end the link: %o', async (frame) => {
    const socket = await dialAndAnswer();
    await notify(socket, frame);
    expect(socket.closedWith).toBe(CLOSES.malformed);
    expect(notified).toEqual([]);
  });
});

describe('an agent of the previous release', () => {
  const older = () => dialAndAnswer({ protocol: PREVIOUS_VERSION });

  test('is linked, and called', async () => {
    const socket = await older();
    expect(socket.sent.at(-1)).toMatchObject({ type: 'welcome' });
    const outcome = links.call('host.inventory', {});
    expect(callsOn(socket)).toMatchObject([{ method: 'host.inventory', params: {} }]);
    await reply(socket, {
      result: { system_identifier: '1', branches: [], projects: [], free_bytes: null, snapshots: null },
    });
    expect(await outcome).toMatchObject({ ok: true, value: { system_identifier: '1' } });
  });

  test('an older one is refused', async () => {
    const socket = await dialAndAnswer({ protocol: PREVIOUS_VERSION - 1 });
    expect(socket.sent.at(-1)).toEqual({ type: 'refusal', reason: 'protocol' });
  });
});
