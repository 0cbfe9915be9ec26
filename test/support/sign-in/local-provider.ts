import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { withKeys } from '../../../dev/identity-provider/key-ring.ts';
import { openIdProvider } from '../../../dev/identity-provider/provider.ts';
import { freePort } from '../free-port.ts';

/** Starts the local stack's identity provider in this process. @returns the settings for a gateway, too */
export async function startLocalProvider() {
  const stateDir = mkdtempSync(join(tmpdir(), 'branchgate-idp-'));
  const port = await freePort();
  const issuer = `http://127.0.0.1:${port}`;
  const clientSecret = 'secret of the test';
  const provider = await openIdProvider({
    issuer,
    stateDir,
    gatewayUrl: 'http://127.0.0.1',
    clientSecret,
    serviceName: 'branchgate',
  });
  const server = createServer(withKeys(stateDir, provider.callback())).listen(port, '127.0.0.1');
  await once(server, 'listening');
  return {
    settings: { IDP_URL: issuer, IDP_CLIENT_SECRET: clientSecret },
    stop: async () => {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
      rmSync(stateDir, { recursive: true, force: true });
    },
  };
}
