import type { OpenAPIHono } from '@hono/zod-openapi';
import type { AppEnv } from '../app-env.ts';
import { REQUEST_ID_FORM } from './request-log.ts';

const Count = { type: 'integer', minimum: 0 } as const;

const ON_EVERY_ANSWER = {
  'X-Request-Id': {
    required: true,
    schema: { type: 'string', pattern: REQUEST_ID_FORM.source },
    description: 'Names the request in our log; a well-formed one of yours is kept.',
  },
  'X-RateLimit-Limit': {
    required: true,
    schema: Count,
    description: 'Requests that the window allows.',
  },
  'X-RateLimit-Remaining': {
    required: true,
    schema: Count,
    description: 'Requests left in the window.',
  },
  'X-RateLimit-Reset': {
    required: true,
    schema: Count,
    description: 'When the window ends, in Unix seconds.',
  },
} as const;

const HEADERS = {
  ...ON_EVERY_ANSWER,
  'WWW-Authenticate': {
    required: true,
    schema: { type: 'string' },
    description: 'Asks for a bearer token (RFC 6750).',
  },
  'Retry-After': {
    required: false,
    schema: Count,
    description: 'Seconds after which to try again; left out where waiting does not help.',
  },
  'Idempotency-Replayed': {
    required: false,
    schema: { type: 'string', const: 'true' },
    description: 'There when this is the answer that the key got before.',
  },
} as const;

export type HeaderName = keyof typeof HEADERS;

/** Headers of every answer, errors too, and `more`, as references to the document's components. */
export const responseHeaders = (...more: HeaderName[]) =>
  Object.fromEntries(
    [...Object.keys(ON_EVERY_ANSWER), ...more].map((name) => [
      name,
      { $ref: `#/components/headers/${name}` },
    ]),
  );

export function describeResponseHeaders({ openAPIRegistry }: OpenAPIHono<AppEnv>): void {
  for (const [name, header] of Object.entries(HEADERS)) {
    openAPIRegistry.registerComponent('headers', name, header);
  }
}
