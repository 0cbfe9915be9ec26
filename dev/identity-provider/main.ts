import { mkdirSync } from 'node:fs';
import { createServer } from 'node:http';
import { z } from 'zod';
import { idpUrl, LOOPBACK } from '../stack/programs.ts';
import { keyDocument, withKeys } from './key-ring.ts';

const Settings = z.object({
  IDP_PORT: z.coerce.number(),
  IDP_STATE_DIR: z.string(),
  GATEWAY_URL: z.url(),
  IDP_CLIENT_SECRET: z.string(),
  SERVICE_NAME: z.string().default('branchgate'),
  MAIL_DIR: z.string(),
  MAIL_API_KEY: z.string(),
});

// Only the user who started the stack may read the state.
process.umask(0o077);
const { IDP_PORT, IDP_STATE_DIR, GATEWAY_URL, IDP_CLIENT_SECRET, SERVICE_NAME, MAIL_DIR, MAIL_API_KEY } =
  Settings.parse(process.env);
mkdirSync(IDP_STATE_DIR, { recursive: true, mode: 0o700 });
// Generates the first key now, so that a failure stops the start.
await keyDocument(IDP_STATE_DIR, new Date());

/** Loads the library of the provider, which takes longer than the rest of a start. Most stacks only need the keys. */
async function openProvider() {
  const [{ openIdProvider }, { mailReceiver }] = await Promise.all([
    import('./provider.ts'),
    import('./mail-receiver.ts'),
  ]);
  const provider = await openIdProvider({
    issuer: idpUrl({ ports: { IDP_PORT } }),
    stateDir: IDP_STATE_DIR,
    gatewayUrl: GATEWAY_URL,
    clientSecret: IDP_CLIENT_SECRET,
    serviceName: SERVICE_NAME,
  });
  // The same server receives mails, which saves a process.
  provider.use(mailReceiver(MAIL_DIR, MAIL_API_KEY));
  return provider.callback();
}

let provider: ReturnType<typeof openProvider> | undefined;
const server = createServer(
  withKeys(IDP_STATE_DIR, async (request, response) => {
    provider ??= openProvider();
    await (await provider)(request, response);
  }),
);
server.listen(IDP_PORT, LOOPBACK, () => process.send?.('ready'));

process.once('SIGTERM', () => process.exit(0));
// The process of the stack was killed.
process.once('disconnect', () => process.exit(1));
