import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { WebSocket, WebSocketServer } from 'ws';
import { eventually } from '../eventually.ts';
import { LinkProxy } from './link-proxy.ts';

const CALL = JSON.stringify({ id: '1', method: 'branch.prove', params: {} });
const BEAT = 'beat';

let gateway: WebSocketServer;
let proxy: LinkProxy;
let agent: WebSocket;
/** The gateway's end of the agent's link. */
let end: WebSocket;
let heard: string[];

/** @param path of its own, where another link may come late */
async function dial(path = '/'): Promise<WebSocket> {
  const linked = new Promise<WebSocket>((resolve) => {
    gateway.on('connection', (link, request) => {
      if (request.url === path) resolve(link);
    });
  });
  const socket = new WebSocket(`${proxy.url.replace('http', 'ws')}${path}`);
  socket.on('error', () => {});
  await once(socket, 'open');
  end = await linked;
  socket.on('message', (data) => heard.push(data.toString()));
  return socket;
}

beforeEach(async () => {
  heard = [];
  gateway = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  await once(gateway, 'listening');
  proxy = await LinkProxy.start(`http://127.0.0.1:${(gateway.address() as AddressInfo).port}`);
  agent = await dial();
});
afterEach(async () => {
  await proxy.stop();
  for (const socket of gateway.clients) socket.terminate();
  gateway.close();
});

/** Sends to the agent. */
function send(...texts: string[]): void {
  for (const text of texts) end.send(text);
}

const expectHeard = (...texts: string[]) => eventually(async () => expect(heard).toEqual(texts));

test('calls come as often as it is set to, anything else once', async () => {
  proxy.copies = 2;
  send(CALL, BEAT);
  await expectHeard(CALL, CALL, BEAT);
});

test('what is slow keeps its order', async () => {
  proxy.delay = 20;
  end.send(CALL);
  await sleep(5);
  proxy.delay = 0;
  send(BEAT);
  await expectHeard(CALL, BEAT);
});

test('a link that swallows stays open and carries nothing; a new one works; both can be cut', async () => {
  proxy.swallow();
  send(CALL);
  await sleep(50);
  expect([heard, agent.readyState]).toEqual([[], WebSocket.OPEN]);
  const other = await dial();
  send(BEAT);
  await expectHeard(BEAT);
  const ended = Promise.all([once(agent, 'close'), once(other, 'close')]);
  proxy.cut();
  await ended;
});

test.each(['refusing', 'silent'] as const)(
  'one host can be cut off (%s) until that is mended',
  async (cut) => {
    const other = await dial('/?host_id=other');
    proxy.partition('other', cut);
    if (cut === 'refusing') await once(other, 'close');
    send(BEAT);
    const late = new WebSocket(`${proxy.url.replace('http', 'ws')}/?host_id=other`);
    late.on('error', () => {});
    await sleep(50);
    expect(heard).toEqual([]);
    expect(late.readyState).not.toBe(WebSocket.OPEN);
    expect(agent.readyState).toBe(WebSocket.OPEN);
    const ended = other.readyState === WebSocket.CLOSED ? null : once(other, 'close');
    proxy.mend('other');
    await ended;
    await dial('/?host_id=other');
    send(BEAT);
    await expectHeard(BEAT);
  },
);
