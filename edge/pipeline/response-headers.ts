import type { OpenAPIHono } from '@hono/zod-openapi';

export const REQUEST_ID_FORM = /^[A-Za-z0-9._-]{8,128}$/;

const Count = { type: 'integer', minimum: 0 } as const;

const ON_EVERY_RESPONSE = {
  'X-Request-Id': {
    required: true,
    schema: { type: 'string', pattern: REQUEST_ID_FORM.source },
    description:
      'Identifies the request in the log of the gateway. A well-formed `X-Request-Id` of the request is reused.',
  },
  'X-RateLimit-Limit': {
    required: true,
    schema: Count,
    description: 'Requests allowed per window.',
  },
  'X-RateLimit-Remaining': {
    required: true,
    schema: Count,
    description: 'Requests remaining in the current window.',
  },
  'X-RateLimit-Reset': {
    required: true,
    schema: Count,
    description: 'End of the current window, in Unix seconds.',
  },
  'X-Branchgate-Bookmark': {
    required: false,
    schema: { type: 'string' },
    description:
      'Send it with your next read: that read is then at least as new as this response. `primary` asks for the newest state. Without it, a read can miss changes of the last seconds.',
  },
} as const;

const HEADERS = {
  ...ON_EVERY_RESPONSE,
  'WWW-Authenticate': {
    required: true,
    schema: { type: 'string' },
    description: 'Bearer authentication is required (RFC 6750).',
  },
  'Retry-After': {
    required: false,
    schema: Count,
    description: 'Seconds to wait before the next attempt; absent when waiting does not help.',
  },
  ETag: {
    required: true,
    schema: { type: 'string' },
    description: 'Identifies this version. Send it as `If-Match` with a change of it.',
  },
  'Idempotency-Replayed': {
    required: false,
    schema: { type: 'string', const: 'true' },
    description: 'Present when the response is the stored response of an earlier request with the same key.',
  },
} as const;

export type HeaderName = keyof typeof HEADERS;

/** Headers of every response, including errors, and `more`, as references to the document's components. */
export const responseHeaders = (...more: HeaderName[]) =>
  Object.fromEntries(
    [...Object.keys(ON_EVERY_RESPONSE), ...more].map((name) => [
      name,
      { $ref: `#/components/headers/${name}` },
    ]),
  );

export function describeResponseHeaders({ openAPIRegistry }: Pick<OpenAPIHono, 'openAPIRegistry'>): void {
  for (const [name, header] of Object.entries(HEADERS)) {
    openAPIRegistry.registerComponent('headers', name, header);
  }
}
