import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { runStatements } from '../../cli/run-statements.ts';
import type { Schemas } from '../../client/client.ts';

describe('a server that accepts connections, and never responds', () => {
  const server = createServer();
  let url: string;

  beforeEach(async () => {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    url = `postgresql://u:p@127.0.0.1:${(server.address() as AddressInfo).port}/db`;
  });
  afterEach(() => {
    vi.useRealTimers();
    server.close();
  });

  /** The attempt, and the connection at the server. */
  async function connect(signal: AbortSignal) {
    const connected = once(server, 'connection') as Promise<[Socket]>;
    const credentials = { direct_url: url, ca_certificate: null } as Schemas['Credentials'];
    const ended = runStatements(credentials, ['select 1'], signal).then(
      () => 'no error',
      (error: Error) => error.message,
    );
    const [socket] = await connected;
    return { ended, closed: once(socket.resume(), 'close') };
  }

  test('is left when the agent cancels', async () => {
    const cancelled = new AbortController();
    const { ended, closed } = await connect(cancelled.signal);
    cancelled.abort(new Error('cancelled'));
    expect(await ended).toBe('cancelled');
    await closed;
  });

  test('is left after ten seconds', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const { ended, closed } = await connect(new AbortController().signal);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(await ended).toContain('timeout');
    await closed;
  });
});
