import { randomBytes } from 'node:crypto';
import { join } from 'node:path';
import { exportJWK, generateKeyPair } from 'jose';
import { z } from 'zod';
import { readStored, writeStored } from '../stack/dev-folder.ts';

const ProviderSecrets = z.object({
  cookie_key: z.string(),
  /** The private key (JWK) that signs ID tokens. */
  id_token_key: z.record(z.string(), z.string()),
});

/** The provider's own secrets, which are generated at its first start. */
export async function providerSecrets(stateDir: string): Promise<z.output<typeof ProviderSecrets>> {
  const file = join(stateDir, 'secrets.json');
  const stored = readStored(file, ProviderSecrets);
  if (stored) return stored;
  const { privateKey } = await generateKeyPair('RS256', { extractable: true });
  const secrets = ProviderSecrets.parse({
    cookie_key: randomBytes(32).toString('base64url'),
    id_token_key: await exportJWK(privateKey),
  });
  writeStored(file, secrets);
  return secrets;
}
