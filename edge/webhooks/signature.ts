import { fromBase64, toBase64 } from '../credentials/seal.ts';

const SECRET_BYTES = 32;
const SECRET_PREFIX = 'whsec_';

const encoder = new TextEncoder();

/** A new secret in the form of Standard Webhooks. */
export const makeSecret = (): string =>
  SECRET_PREFIX + toBase64(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));

/** The headers that prove a delivery (Standard Webhooks 1.0): its receiver can check sender, content and age. */
export async function signatureHeaders(
  secret: string,
  { id, body, now }: { id: string; body: string; now: Date },
): Promise<Record<string, string>> {
  const algorithm = { name: 'HMAC', hash: 'SHA-256' };
  const bytes = fromBase64(secret.slice(SECRET_PREFIX.length));
  const key = await crypto.subtle.importKey('raw', bytes, algorithm, false, ['sign']);
  const timestamp = String(Math.floor(now.getTime() / 1000));
  const signature = await crypto.subtle.sign('HMAC', key, encoder.encode(`${id}.${timestamp}.${body}`));
  return {
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': `v1,${toBase64(new Uint8Array(signature))}`,
  };
}
