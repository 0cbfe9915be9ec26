import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import { join } from 'node:path';
import { PublicProtocol } from 'paseto';
import {
  ExportPublicKeyFactory,
  ExportSecretKeyFactory,
  GenerateKeyPairFactory,
  GetPublicKeyFactory,
  ImportSecretKeyFactory,
  type SecretKey,
} from 'paseto/v4/public';
import { z } from 'zod';
import { readStored, writeStored } from '../stack/dev-folder.ts';

/** Where the provider publishes its keys (specification 5). */
const KEY_DOCUMENT_PATH = '/v1/keys/paseto-v4-public';

const v4 = new PublicProtocol(
  GenerateKeyPairFactory,
  GetPublicKeyFactory,
  ImportSecretKeyFactory,
  ExportSecretKeyFactory,
  ExportPublicKeyFactory,
);

const Key = z.strictObject({
  kid: z.string(),
  /** PASERK `k4.secret.…` */
  secret_key: z.templateLiteral(['k4.secret.', z.string()]),
});
type Key = z.output<typeof Key>;

/** A previous key is published until it is withdrawn. */
const KeyRing = z.strictObject({
  signing: Key,
  former: z.array(z.strictObject({ ...Key.shape, withdrawn_at: z.iso.datetime() })),
});
type KeyRing = z.output<typeof KeyRing>;

const ringFile = (stateDir: string) => join(stateDir, 'paseto-keys.json');

/** The keys stored in `stateDir`. Generates the first key if there is none. */
async function keyRing(stateDir: string): Promise<KeyRing> {
  const stored = readStored(ringFile(stateDir), KeyRing);
  if (stored) return stored;
  const ring = { signing: await generateKey(), former: [] };
  writeStored(ringFile(stateDir), ring);
  return ring;
}

async function generateKey(): Promise<Key> {
  const { secretKey } = await v4.GenerateKeyPair({ extractable: true });
  const day = new Date().toISOString().slice(0, 10);
  return {
    kid: `${day}-${crypto.randomUUID().slice(0, 8)}`,
    secret_key: await v4.ExportSecretKey(secretKey),
  };
}

export async function signingKey(stateDir: string): Promise<{ kid: string; secretKey: SecretKey }> {
  const { signing } = await keyRing(stateDir);
  return { kid: signing.kid, secretKey: await v4.ImportSecretKey(signing.secret_key) };
}

/** What is published at `KEY_DOCUMENT_PATH`. */
export async function keyDocument(stateDir: string, now: Date) {
  const { signing, former } = await keyRing(stateDir);
  const published = [signing, ...former.filter((key) => now < new Date(key.withdrawn_at))];
  return {
    keys: await Promise.all(
      published.map(async ({ kid, secret_key }) => {
        const publicKey = await v4.GetPublicKey(await v4.ImportSecretKey(secret_key));
        return { kid, alg: 'v4.public', public_key: await v4.ExportPublicKey(publicKey) };
      }),
    ),
  };
}

/**
 * Replaces the signing key. The previous one is published until `withdrawnAt`.
 * @returns the ID of the new key
 */
export async function rotateKey(stateDir: string, withdrawnAt: Date): Promise<string> {
  const { signing: previous, former } = await keyRing(stateDir);
  const signing = await generateKey();
  writeStored(ringFile(stateDir), {
    signing,
    former: [...former, { ...previous, withdrawn_at: withdrawnAt.toISOString() }],
  });
  return signing.kid;
}

/** Serves the keys, and leaves other requests to `serveOther`. A failure is logged, and its response is 500. */
export const withKeys =
  (
    stateDir: string,
    serveOther: (request: IncomingMessage, response: ServerResponse) => Promise<void>,
  ): RequestListener =>
  async (request, response) => {
    try {
      if (request.url?.split('?')[0] !== KEY_DOCUMENT_PATH) return await serveOther(request, response);
      const document = await keyDocument(stateDir, new Date());
      response.setHeader('content-type', 'application/json').end(JSON.stringify(document));
    } catch (error) {
      console.error(error);
      response.writeHead(500).end();
    }
  };
