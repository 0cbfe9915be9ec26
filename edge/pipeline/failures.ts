import type { OpenAPIHono } from '@hono/zod-openapi';
import { z } from 'zod';
import { FAILURES, type FailureCode, formerCodeOf, retryAfterOf } from '../../shared/failures.ts';
import { Moment } from '../../shared/moment.ts';
import { Scalar } from '../../shared/protocol/tables.ts';
import { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { RULE_VIAS } from '../../shared/rule-via.ts';
import { CHANGE_STATES, FOLLOW_RECORD_STATES } from '../database/column-types.ts';
import { RESOURCES, type Resource } from '../missing.ts';
import { type HeaderName, responseHeaders } from './response-headers.ts';

export const SCIM_TYPE = 'application/scim+json';
/** RFC 7644 has 400 for what is not valid. */
export const scimStatusOf = (code: FailureCode) => {
  const { status } = FAILURES[code];
  return status === 422 ? 400 : status;
};

/** The errors of SCIM (RFC 7644 section 3.12). */
export const SCIM_ERROR_SCHEMA = z
  .looseObject({
    schemas: z.array(z.string()),
    status: z.string().meta({ example: '404' }),
    scimType: z.string().optional(),
    detail: z.string(),
  })
  .meta({ id: 'ScimError' });

const Count = z.int().min(0);
const Details = z
  .array(
    z.strictObject({
      path: z.string().meta({ description: 'The field or query parameter, with dots between nested names.' }),
      message: z.string(),
    }),
  )
  .meta({ description: 'One entry per invalid value.' });

interface Fields {
  shape: z.ZodRawShape;
  example: Record<string, unknown>;
}

/** The failure of a job, as reported to the client that waits for the job. */
const OF_A_JOB: Fields = {
  shape: {
    job_id: z.uuid().optional().meta({ description: 'The job that failed, if a job caused this error.' }),
  },
  example: {},
};

const OF_OAUTH: Fields = {
  shape: {
    error_description: z.string().optional().meta({ description: 'What is wrong with the request.' }),
  },
  example: {},
};

/** Fields that an error adds to the envelope, each with an example. */
const FIELDS: Partial<Record<FailureCode, Fields>> = {
  FORBIDDEN: {
    shape: {
      required: z.string().meta({ description: 'The missing scope, or the roles that are allowed.' }),
    },
    example: { required: 'role owner, admin, operator' },
  },
  VALIDATION_FAILED: {
    shape: { details: Details },
    example: {
      details: [{ path: 'branch_name', message: 'Must have at least 3 characters.' }],
    },
  },
  STATEMENT_REFUSED: {
    shape: {
      sqlstate: z.string().meta({ description: 'The SQLSTATE error code (PostgreSQL manual, appendix A).' }),
      change: z.int().nonnegative().optional().meta({
        description: 'Index in `changes` of the refused change, if one of several was.',
      }),
      statement: z.int().positive().optional().meta({
        description: 'Which of several statements was refused, counted from 1.',
      }),
      required_role: z.enum(['read_write', 'owner']).optional().meta({
        description: 'The `role` of a query that may run such a statement on this branch.',
      }),
      hint: z.string().optional().meta({ description: 'What to do about it.' }),
    },
    example: { sqlstate: '23505', message: 'duplicate key value violates unique constraint "author_pkey"' },
  },
  SOURCE_UNSUITABLE: {
    shape: {
      details: z
        .array(SourceFinding)
        .meta({ description: 'Errors, and then warnings, which alone would not prevent it.' }),
    },
    example: {
      details: [
        {
          problem: 'wal_level',
          severity: 'error',
          path: 'source_url',
          object: null,
          message: 'wal_level is replica at the source, and has to be logical.',
          statement: 'ALTER SYSTEM SET wal_level = logical; -- then restart the server',
        },
      ],
    },
  },
  TIME_NOT_RECOVERABLE: {
    shape: {
      from: Moment.nullable().meta({ description: 'The earliest time that can be recovered; null: none.' }),
      until: Moment.nullable().meta({ description: 'The latest one.' }),
    },
    example: { from: '2026-11-22T10:15:00.000000Z', until: '2026-11-23T10:15:00.000000Z' },
  },
  FOLLOW_STATE: {
    shape: { state: z.enum(FOLLOW_RECORD_STATES).optional() },
    example: { state: 'stopped' },
  },
  CHANGE_STATE: {
    shape: { state: z.enum(CHANGE_STATES).optional() },
    example: { state: 'applying' },
  },
  CHANGE_OVER_BUDGET: {
    shape: {
      statement: Count.meta({ description: 'The `position` of the statement.' }),
      duration_ms: Count.meta({ description: 'How long it took when it was rehearsed.' }),
      budget_ms: Count,
    },
    example: { statement: 2, duration_ms: 5_400, budget_ms: 2_000 },
  },
  CHANGE_LIMIT_REACHED: {
    shape: { limit: Count, current: Count },
    example: { limit: 50, current: 50 },
  },
  LOGIN_REFUSED: {
    shape: {
      sqlstate: z.string().meta({ description: 'The SQLSTATE error code (PostgreSQL manual, appendix A).' }),
      postgres_message: z.string().meta({ description: "PostgreSQL's reason." }),
    },
    example: {
      sqlstate: '58P01',
      postgres_message: 'could not access file "nope": No such file or directory',
    },
  },
  CHANGES_CONFLICT: {
    shape: {
      conflicts: z.array(
        z.strictObject({
          change: Count.meta({ description: 'Index in `changes`.' }),
          reason: z.enum(['changed', 'missing']),
          row: z.record(z.string(), Scalar.nullable()).nullable().meta({
            description: 'The present values of the row; null if it does not exist.',
          }),
          truncated: z.array(z.string()).meta({ description: 'Columns whose value was cut.' }),
        }),
      ),
    },
    example: {
      conflicts: [{ change: 0, reason: 'changed', row: { id: 7, title: 'Theirs' }, truncated: [] }],
    },
  },
  DATABASE_NAME_TOO_LONG: {
    shape: {
      length: Count.meta({ description: 'Length of the database name that would result.' }),
      max_slug_length: Count.meta({ description: 'Longest branch name that this project allows.' }),
    },
    example: { length: 71, max_slug_length: 40 },
  },
  BRANCH_LIMIT_REACHED: {
    shape: {
      limit: Count.meta({
        description:
          'The `branch_limit` of the project, and the leased branches that the operator allows on top.',
      }),
      current: Count.meta({ description: 'Branches that are creating, active or expired.' }),
      retry_after: z.null().meta({ description: 'Waiting alone does not help.' }),
    },
    example: { limit: 10, current: 10, retry_after: null },
  },
  HOST_NOT_EMPTY: {
    shape: { projects: Count.meta({ description: 'Projects on the host, failed ones included.' }) },
    example: { projects: 3 },
  },
  MASKING_INCOMPLETE: {
    shape: {
      ...OF_A_JOB.shape,
      columns: z
        .array(
          z.strictObject({
            table: z.string(),
            column: z.string().nullable().meta({ description: 'Null: the whole table.' }),
            reason: z.string(),
          }),
        )
        .meta({
          description:
            'Columns that look personal and have no rule, and columns whose rule cannot be applied. Empty: it is about no column, as the message says.',
        }),
    },
    example: {
      message:
        'The masking policy does not cover the branch, so nothing was made. Give the columns a rule, and repeat the request. public.customer.email2 (its name says e-mail)',
      columns: [{ table: 'public.customer', column: 'email2', reason: 'its name says e-mail' }],
    },
  },
  SNAPSHOT_LIMIT_REACHED: {
    shape: {
      limit: Count,
      current: Count,
      retry_after: z.null().meta({ description: 'Always null: waiting does not help, delete a snapshot.' }),
    },
    example: { limit: 30, current: 30, retry_after: null },
  },
  PROJECT_LIMIT_REACHED: {
    shape: {
      limit: Count,
      current: Count,
      retry_after: z.null().meta({ description: 'Always null: waiting does not help, delete a project.' }),
    },
    example: { limit: 10, current: 10, retry_after: null },
  },
  TENANT_QUOTA_REACHED: {
    shape: {
      limit: z.number().meta({ description: 'GiB that the quotas of all projects may have together.' }),
      current: z.number().meta({ description: 'GiB that the quotas of the other projects have.' }),
      retry_after: z.null().meta({ description: 'Always null: waiting does not help, lower a quota.' }),
    },
    example: { limit: 20, current: 19.75, retry_after: null },
  },
  STORAGE_QUOTA_EXCEEDED: {
    shape: { used_bytes: Count, needed_bytes: Count, limit_bytes: Count },
    example: { used_bytes: 201_326_592, needed_bytes: 104_857_600, limit_bytes: 268_435_456 },
  },
  FILE_LIMIT_REACHED: {
    shape: { used_files: Count, needed_files: Count, limit_files: Count },
    example: { used_files: 61_000, needed_files: 52_000, limit_files: 100_000 },
  },
  RULE_EXISTS: {
    shape: {
      rule_id: z
        .uuid()
        .nullable()
        .meta({ description: 'The existing rule; null if it was deleted meanwhile.' }),
      via: z
        .enum(RULE_VIAS)
        .nullable()
        .meta({ description: 'What the existing rule opens; PATCH changes it.' }),
    },
    example: { rule_id: '7d2f1b64-7c44-4b5e-8d3e-2f9a0c1b5e70', via: 'all' },
  },
  RULE_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 2000 } },
  STREAM_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 20 } },
  WEBHOOK_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 20 } },
  QUOTA_ABOVE_SELF_SERVICE_CAP: {
    shape: { limit: z.number().meta({ description: 'The highest quota that users may set, in GiB.' }) },
    example: { limit: 5 },
  },
  CONNECTION_ATTEMPTS_ABOVE_MAX: {
    shape: { limit: Count.meta({ description: 'The highest number that users may set.' }) },
    example: { limit: 2000 },
  },
  RATE_LIMITED: {
    shape: { retry_after: Count.meta({ description: 'Seconds to wait before the next request.' }) },
    example: { retry_after: 12 },
  },
  IDENTITY_PROVIDER_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 10 } },
  DOMAIN_NOT_VERIFIED: {
    shape: { txt_record: z.string().meta({ description: 'The text that the TXT record has to have.' }) },
    example: { txt_record: 'branchgate-verification=k3ud7xqam2pzw5tc' },
  },
  API_KEY_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 100 } },
  TRUST_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 20 } },
  OAUTH_GRANT_LIMIT_REACHED: { shape: { limit: Count }, example: { limit: 50 } },
  invalid_request: OF_OAUTH,
  invalid_client: OF_OAUTH,
  invalid_client_metadata: OF_OAUTH,
  invalid_grant: OF_OAUTH,
  invalid_redirect_uri: OF_OAUTH,
  invalid_scope: OF_OAUTH,
  invalid_target: OF_OAUTH,
  unsupported_response_type: OF_OAUTH,
  NOT_FOUND: {
    shape: {
      ...OF_A_JOB.shape,
      resource: z
        .enum(Object.keys(RESOURCES) as [Resource, ...Resource[]])
        .optional()
        .meta({ description: 'What was not found.' }),
    },
    example: { message: 'No branch pr-7 was found in this project.', resource: 'branch' },
  },
  SOURCE_BUSY: OF_A_JOB,
  SOURCE_NOT_ACTIVE: OF_A_JOB,
  DATABASE_NAME_HELD: OF_A_JOB,
  INTERNAL: OF_A_JOB,
  HOST_BUSY: OF_A_JOB,
  HOST_FULL: OF_A_JOB,
  COLLATION_OUTDATED: OF_A_JOB,
  HOST_UNAVAILABLE: OF_A_JOB,
  HOST_UPGRADE_REQUIRED: OF_A_JOB,
  DATABASE_SERVER_UNAVAILABLE: OF_A_JOB,
  RULES_NOT_APPLIED: OF_A_JOB,
  PROOF_FAILED: OF_A_JOB,
  HOST_TIMEOUT: OF_A_JOB,
  IDEMPOTENCY_IN_FLIGHT: {
    shape: { job_id: z.uuid().optional().meta({ description: 'The job that the first request started.' }) },
    example: { job_id: '4c0e2f0a-4f7b-4e0e-9f0a-9a3c1d2e5b60' },
  },
};

/** Headers that the responses of a status have in addition to those of every response. */
const HEADERS_OF_STATUS: Partial<Record<number, HeaderName[]>> = {
  401: ['WWW-Authenticate'],
  429: ['Retry-After'],
};

/** The error envelope: code, message, request id and the fields of that error. */
function envelopeOf(code: FailureCode) {
  const { message } = FAILURES[code];
  const former = formerCodeOf(code);
  const alias = former === null ? '' : ` Earlier releases send \`${former}\` instead; treat both alike.`;
  const { shape, example } = FIELDS[code] ?? { shape: {}, example: {} };
  const request_id = '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11';
  return z
    .strictObject({ error: z.literal(code), message: z.string(), request_id: z.string(), ...shape })
    .meta({ description: message + alias, example: { error: code, message, request_id, ...example } });
}

const headersOf = (codes: FailureCode[], status: number): HeaderName[] => {
  const ofStatus = HEADERS_OF_STATUS[status] ?? [];
  const isRetryable = codes.some((code) => retryAfterOf(code) !== null);
  return isRetryable && !ofStatus.includes('Retry-After') ? [...ofStatus, 'Retry-After'] : ofStatus;
};

const RESPONSES = '#/components/responses/';
const SEPARATOR = '.';

/** The response that describes these failures, which share one HTTP status. */
function responseOf([code, ...others]: [FailureCode, ...FailureCode[]]) {
  const codes = [code, ...others];
  const envelopes = codes.map((name) => ({ $ref: `#/components/schemas/${name}` }));
  return {
    description: codes.map((name) => `\`${name}\`: ${FAILURES[name].message}`).join(' '),
    headers: responseHeaders(...headersOf(codes, FAILURES[code].status)),
    content: {
      'application/json': { schema: others.length > 0 ? { anyOf: envelopes } : { ...envelopes[0] } },
    },
  };
}

/** References, by HTTP status, to the response components that `describeFailures` registers. */
export function failureResponses(codes: readonly FailureCode[]) {
  const byStatus = Map.groupBy(new Set(codes), (code) => FAILURES[code].status);
  return Object.fromEntries(
    [...byStatus].map(([status, group]) => [status, { $ref: RESPONSES + group.sort().join(SEPARATOR) }]),
  );
}

/** As `failureResponses`, in the form of SCIM. */
export function scimFailureResponses(codes: readonly FailureCode[]) {
  const byStatus = Map.groupBy(new Set(codes), scimStatusOf);
  return Object.fromEntries(
    [...byStatus].map(([status, group]) => [
      status,
      {
        description: group.map((code) => FAILURES[code].message).join(' '),
        headers: responseHeaders(...headersOf(group, status)),
        content: { [SCIM_TYPE]: { schema: SCIM_ERROR_SCHEMA } },
      },
    ]),
  );
}

/** Codes that a job may end with, and no response has. */
export const OF_JOBS_ONLY: ReadonlySet<string> = new Set<FailureCode>(['JOB_CANCELLED', 'CHANGE_STOPPED']);

/** Registers all error schemas and the failure responses that operations share as components. */
export function describeFailures({ openAPIRegistry }: Pick<OpenAPIHono, 'openAPIRegistry'>): void {
  for (const code of Object.keys(FAILURES) as FailureCode[]) {
    if (!OF_JOBS_ONLY.has(code)) openAPIRegistry.register(code, envelopeOf(code));
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
