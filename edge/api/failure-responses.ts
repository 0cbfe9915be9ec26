import type { OpenAPIHono } from '@hono/zod-openapi';
import { z } from 'zod';
import { FAILURES, type FailureCode } from '../../shared/failures.ts';
import type { AppEnv } from '../app-env.ts';
import { type HeaderName, responseHeaders } from './response-headers.ts';

const Count = z.int().min(0);
const Details = z.array(z.strictObject({ path: z.string(), message: z.string() }));

interface Fields {
  shape: z.ZodRawShape;
  example: Record<string, unknown>;
}

/** A failure of long work, told to whoever waits for its end, names the job. */
const OF_A_JOB: Fields = {
  shape: { job_id: z.uuid().optional().meta({ description: 'The job that failed, if it was one.' }) },
  example: {},
};

/** Fields that an error adds to the envelope, with an example of each. */
const FIELDS: Partial<Record<FailureCode, Fields>> = {
  FORBIDDEN: { shape: { required: z.string() }, example: { required: 'role owner, admin, operator' } },
  VALIDATION_FAILED: {
    shape: { details: Details },
    example: {
      details: [{ path: 'branch_name', message: 'Too small: expected string to have >=3 characters' }],
    },
  },
  STATEMENT_REFUSED: {
    shape: { sqlstate: z.string().meta({ description: 'Code of the error (PostgreSQL, appendix A).' }) },
    example: { sqlstate: '23505', message: 'duplicate key value violates unique constraint "author_pkey"' },
  },
  DATABASE_NAME_TOO_LONG: {
    shape: { length: Count, max_slug_length: Count },
    example: { length: 71, max_slug_length: 40 },
  },
  BRANCH_LIMIT_REACHED: {
    shape: { limit: Count, current: Count, retry_after: z.null() },
    example: { limit: 10, current: 10, retry_after: null },
  },
  STORAGE_QUOTA_EXCEEDED: {
    shape: { used_bytes: Count, needed_bytes: Count, limit_bytes: Count },
    example: { used_bytes: 201_326_592, needed_bytes: 104_857_600, limit_bytes: 268_435_456 },
  },
  RULE_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 2000 } },
  STREAM_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 20 } },
  QUOTA_ABOVE_SELF_SERVICE_CAP: { shape: { limit: z.number() }, example: { limit: 5 } },
  RATE_LIMITED: { shape: { retry_after: Count }, example: { retry_after: 12 } },
  NOT_FOUND: OF_A_JOB,
  SOURCE_BUSY: OF_A_JOB,
  SOURCE_NOT_ACTIVE: OF_A_JOB,
  HOST_UNAVAILABLE: OF_A_JOB,
  HOST_TIMEOUT: OF_A_JOB,
  IDEMPOTENCY_IN_FLIGHT: {
    shape: { job_id: z.uuid().optional().meta({ description: 'The job of the first request.' }) },
    example: { job_id: '4c0e2f0a-4f7b-4e0e-9f0a-9a3c1d2e5b60' },
  },
};

/** Headers that the answers of a status add to those of every answer. */
const HEADERS_OF_STATUS: Partial<Record<number, HeaderName[]>> = {
  401: ['WWW-Authenticate'],
  429: ['Retry-After'],
  503: ['Retry-After'],
};

/** The envelope of an error (api.md, Conventions). */
function envelopeOf(code: FailureCode) {
  const { message } = FAILURES[code];
  const { shape, example } = FIELDS[code] ?? { shape: {}, example: {} };
  const request_id = '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11';
  return z
    .strictObject({ error: z.literal(code), message: z.string(), request_id: z.string(), ...shape })
    .meta({ description: message, example: { error: code, message, request_id, ...example } });
}

const RESPONSES = '#/components/responses/';
const SEPARATOR = '.';

/** The answer that these failures give, which have one status. */
function responseOf([code, ...others]: [FailureCode, ...FailureCode[]]) {
  const codes = [code, ...others];
  const envelopes = codes.map((name) => ({ $ref: `#/components/schemas/${name}` }));
  return {
    description: codes.map((name) => `\`${name}\`: ${FAILURES[name].message}`).join(' '),
    headers: responseHeaders(...(HEADERS_OF_STATUS[FAILURES[code].status] ?? [])),
    content: {
      'application/json': { schema: others.length > 0 ? { anyOf: envelopes } : { ...envelopes[0] } },
    },
  };
}

/** By HTTP status, references to what `describeFailures` says of these failures. */
export function failureResponses(codes: readonly FailureCode[]) {
  const byStatus = Map.groupBy(new Set(codes), (code) => FAILURES[code].status);
  return Object.fromEntries(
    [...byStatus].map(([status, group]) => [status, { $ref: RESPONSES + group.sort().join(SEPARATOR) }]),
  );
}

/** Adds all failures, and the answers that operations refer to. Operations repeat them too often to hold them. */
export function describeFailures({ openAPIRegistry }: OpenAPIHono<AppEnv>): void {
  for (const code of Object.keys(FAILURES) as FailureCode[]) {
    openAPIRegistry.register(code, envelopeOf(code));
  }
  const responses = openAPIRegistry.definitions.flatMap((definition) =>
    definition.type === 'route' ? Object.values(definition.route.responses) : [],
  );
  const references = new Set(responses.flatMap((response) => ('$ref' in response ? response.$ref : [])));
  for (const reference of references) {
    const name = reference.slice(RESPONSES.length);
    const codes = name.split(SEPARATOR) as [FailureCode, ...FailureCode[]];
    openAPIRegistry.registerComponent('responses', name, responseOf(codes));
  }
}
