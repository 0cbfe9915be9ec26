import type { Context } from 'hono';
import { z } from 'zod';
import { ApiError } from './errors.ts';

const BODY_LIMIT = 1024 * 1024;
/** How much of a body over the limit is read and thrown away: who is still sending does not hear the answer. */
const DISCARD_LIMIT = 16 * BODY_LIMIT;

function validated<S extends z.ZodType>(schema: S, input: unknown): z.output<S> {
  const reading = schema.safeParse(input);
  if (reading.success) return reading.data;
  const details = reading.error.issues.map(({ path, message }) => ({ path: path.join('.'), message }));
  throw new ApiError('VALIDATION_FAILED', { details });
}

async function readBytes(body: ReadableStream<Uint8Array> | null): Promise<Uint8Array> {
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of body ?? []) {
    size += chunk.length;
    if (size <= BODY_LIMIT) chunks.push(chunk);
    else if (size > DISCARD_LIMIT) break;
  }
  if (size > BODY_LIMIT) throw new ApiError('PAYLOAD_TOO_LARGE');
  return new Uint8Array(await new Blob(chunks).arrayBuffer());
}

/**
 * The JSON body, checked. Unknown fields are refused by strict schemas, never ignored.
 * @throws ApiError PAYLOAD_TOO_LARGE, BAD_REQUEST, VALIDATION_FAILED
 */
export async function readBody<S extends z.ZodType>(context: Context, schema: S): Promise<z.output<S>> {
  const bytes = await readBytes(context.req.raw.body);
  let parsed: unknown;
  try {
    parsed = JSON.parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(bytes));
  } catch {
    throw new ApiError('BAD_REQUEST');
  }
  return validated(schema, parsed);
}

/** The query, checked. @throws ApiError VALIDATION_FAILED, also for a parameter that comes twice */
export function readQuery<S extends z.ZodType>(context: Context, schema: S): z.output<S> {
  const values = Object.entries(context.req.queries());
  const repeated = values.find(([, given]) => given.length > 1);
  if (repeated)
    throw new ApiError('VALIDATION_FAILED', { details: [{ path: repeated[0], message: 'given twice' }] });
  return validated(schema, Object.fromEntries(values.map(([name, given]) => [name, given[0]])));
}

/** A UUID of the path; what is not one names nothing. @throws ApiError NOT_FOUND */
export function readId(context: Context, name: string): string {
  const reading = z.uuid().safeParse(context.req.param(name));
  if (!reading.success) throw new ApiError('NOT_FOUND');
  return reading.data.toLowerCase();
}
