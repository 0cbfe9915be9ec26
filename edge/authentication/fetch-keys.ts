import { parseJson } from './json.ts';
import { type PublicKeys, readKeyDocument } from './public-key.ts';

/** Timeout for the whole key document. */
export const KEY_FETCH_MS = 5_000;
const DOCUMENT_MAX_BYTES = 64 * 1024;

/** Names of this machine in a URL. */
const LOOPBACK: ReadonlySet<string> = new Set(['localhost', '127.0.0.1', '[::1]']);

/** An attacker who can modify this response can sign in as any user, so plain HTTP is limited to loopback. */
function secureAddress(endpoint: string): URL {
  const address = new URL(endpoint);
  const secure =
    address.protocol === 'https:' || (address.protocol === 'http:' && LOOPBACK.has(address.hostname));
  if (!secure) throw new Error('the key endpoint must be https, or http on a loopback address');
  return address;
}

/**
 * Fetches the current keys of the provider.
 * @throws Error when the document is unavailable, too slow, too large or malformed
 */
export const fetchKeys = async (endpoint: string): Promise<PublicKeys> =>
  readKeyDocument(await fetchDocument(secureAddress(endpoint), AbortSignal.timeout(KEY_FETCH_MS)));

/**
 * Fetches a JSON document of a provider.
 * @throws Error when it is unavailable, too slow or too large
 */
export async function fetchDocument(address: URL, signal: AbortSignal): Promise<unknown> {
  const response = await fetch(address, {
    headers: { accept: 'application/json' },
    // A redirect could lead to another host or to plain HTTP, so it counts as a failure.
    redirect: 'manual',
    signal,
  });
  if (response.status !== 200) {
    await response.body?.cancel();
    throw new Error(`the key endpoint responded with status ${response.status}`);
  }
  return parseJson(await readBounded(response));
}

async function readBounded(response: Response): Promise<Uint8Array> {
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of response.body ?? []) {
    size += part.length;
    if (size > DOCUMENT_MAX_BYTES) throw new Error('the key document is too large');
    parts.push(part);
  }
  const whole = new Uint8Array(size);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
