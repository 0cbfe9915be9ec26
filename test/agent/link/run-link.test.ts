import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import { decodeJwt, exportJWK } from 'jose';
import { afterEach, expect, test, vi } from 'vitest';
import { WebSocketServer } from 'ws';
import { PrivateKey } from '../../../agent/link/identity.ts';
import { runLink } from '../../../agent/link/run-link.ts';
import { BOUNDS } from '../../../shared/protocol/bounds.ts';
import { PROTOCOL_VERSION } from '../../../shared/protocol/version.ts';
import { makeHostKey } from '../../support/host/host-key.ts';

const identity = {
  host_id: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f',
  private_key: PrivateKey.parse(await exportJWK((await makeHostKey()).privateKey)),
};

afterEach(() => vi.restoreAllMocks());

/** Welcomes every host and is silent after that. */
async function startSilentGateway() {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' });
  server.on('connection', (socket) => {
    const challenge = { type: 'challenge', protocol: PROTOCOL_VERSION, nonce: 'n'.repeat(43), epoch: 0 };
    socket.send(JSON.stringify(challenge));
    socket.once('message', (data) => {
      const { epoch } = decodeJwt((JSON.parse(String(data)) as { token: string }).token);
      socket.send(JSON.stringify({ type: 'welcome', epoch }));
    });
  });
  await once(server, 'listening');
  return { server, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

test("a silent link counts as lost, even if the host's clock was set back meanwhile", async () => {
  const { server, url } = await startSilentGateway();
  const leaving = new AbortController();
  const lost = Promise.withResolvers<unknown>();
  const running = runLink({
    gatewayUrl: url,
    identity,
    handle: async () => ({}),
    signal: leaving.signal,
    bounds: { ...BOUNDS, heartbeat: 50, silence: 100 },
    onLinked: () => {
      const now = Date.now();
      vi.spyOn(Date, 'now').mockReturnValue(now - 3_600_000);
    },
    log: (event, fields) => {
      if (event === 'link.down') lost.resolve(fields?.reason);
    },
  });
  try {
    expect(await lost.promise).toBe('silent');
  } finally {
    leaving.abort();
    for (const socket of server.clients) socket.terminate();
    server.close();
    await running;
  }
});
