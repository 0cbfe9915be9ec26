import type { MiddlewareHandler } from 'hono';
import { MAPS, mayHaveRefusedKey, refusedKey } from '../../shared/foreign-json.ts';
import { ApiError } from '../errors.ts';

const BODY_LIMIT = 1024 * 1024;
/**
 * Bytes that are read of a body over the limit: a client does not see the response while it is still sending.
 */
const DISCARD_LIMIT = 16 * BODY_LIMIT;

async function readBounded(body: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body) {
    size += chunk.length;
    if (size <= BODY_LIMIT) chunks.push(chunk);
    else if (size > DISCARD_LIMIT) break;
  }
  if (size > BODY_LIMIT) throw new ApiError('PAYLOAD_TOO_LARGE');
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/** Paths whose body is a form (RFC 6749 section 4). */
const FORM_PATHS = /^\/api\/v1\/auth\/(?:token|oauth\/(?:token|revoke))$/;

const typeOf = (path: string) =>
  FORM_PATHS.test(path) ? 'application/x-www-form-urlencoded' : 'application/json';

/** @throws ApiError VALIDATION_FAILED for a key that leads to what all requests of an isolate share */
function refuseKeys(body: string): void {
  if (!mayHaveRefusedKey(body)) return;
  let json: unknown;
  try {
    json = JSON.parse(body);
  } catch {
    // Whoever reads the body reports it, or it is a form.
    return;
  }
  const path = refusedKey(json, MAPS);
  if (path !== null)
    throw new ApiError('VALIDATION_FAILED', { details: [{ path, message: 'This name is not allowed.' }] });
}

/**
 * Reads the request body up to the limit. Every body is treated as JSON or as a form, whatever its
 * `Content-Type`.
 * @throws ApiError PAYLOAD_TOO_LARGE; BAD_REQUEST if the body is not UTF-8; VALIDATION_FAILED
 */
export const boundBody: MiddlewareHandler = async (c, next) => {
  if (!['GET', 'HEAD', 'OPTIONS'].includes(c.req.method)) {
    const bytes = c.req.raw.body ? await readBounded(c.req.raw.body) : new Uint8Array();
    let body: string;
    try {
      body = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(bytes);
      const headers = new Headers(c.req.raw.headers);
      headers.set('Content-Type', typeOf(c.req.path));
      c.req.raw = new Request(c.req.raw, { headers, body });
    } catch {
      throw new ApiError('BAD_REQUEST');
    }
    refuseKeys(body);
  }
  await next();
};
