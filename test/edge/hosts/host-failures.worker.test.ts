import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { and, eq, inArray } from 'drizzle-orm';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { OPEN_STATUSES } from '../../../edge/database/conditions.ts';
import { hosts, jobs } from '../../../edge/database/schema.ts';
import { FAILURES, type FailureCode } from '../../../shared/failures.ts';
import { HOST_FAILURES, type HostFailureCode } from '../../../shared/protocol/host-failures.ts';
import { checkResponse } from '../../support/contract.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

type Expected = [status: number, code: FailureCode, retryAfter: string | null];

/** What a client gets if a call with its own values fails on the host. */
const OF_REQUESTS: Record<HostFailureCode, Expected> = {
  SOURCE_BUSY: [409, 'SOURCE_BUSY', null],
  SOURCE_MISSING: [409, 'SOURCE_NOT_ACTIVE', null],
  TABLE_NOT_FOUND: [404, 'NOT_FOUND', null],
  ROW_NOT_FOUND: [404, 'ROW_NOT_FOUND', null],
  COLUMN_NOT_FOUND: [422, 'VALIDATION_FAILED', null],
  ROW_CHANGED: [409, 'ROW_CHANGED', null],
  KEY_NOT_UNIQUE: [422, 'VALIDATION_FAILED', null],
  INVALID_CALL: [422, 'VALIDATION_FAILED', null],
  STATEMENT_REFUSED: [422, 'STATEMENT_REFUSED', null],
  LOGIN_REFUSED: [409, 'LOGIN_REFUSED', null],
  TIME_LIMIT_REACHED: [422, 'TIME_LIMIT_REACHED', null],
  DATABASE_NAME_HELD: [409, 'DATABASE_NAME_HELD', '60'],
  PROOF_FAILED: [503, 'PROOF_FAILED', '60'],
  POSTGRES_UNAVAILABLE: [503, 'DATABASE_SERVER_UNAVAILABLE', '5'],
  POOLER_UNAVAILABLE: [503, 'DATABASE_SERVER_UNAVAILABLE', '5'],
  RULES_NOT_APPLIED: [503, 'RULES_NOT_APPLIED', '60'],
  HOST_BUSY: [503, 'HOST_BUSY', '5'],
  PROJECT_BUSY: [429, 'PROJECT_BUSY', '5'],
  HOST_FULL: [503, 'HOST_FULL', null],
  COLLATION_OUTDATED: [503, 'COLLATION_OUTDATED', null],
  INTERNAL: [500, 'INTERNAL', null],
  HOST_UNAVAILABLE: [503, 'HOST_UNAVAILABLE', '5'],
  HOST_UPGRADE_REQUIRED: [503, 'HOST_UPGRADE_REQUIRED', '60'],
  HOST_TIMEOUT: [504, 'HOST_TIMEOUT', '5'],
};

/**
 * A job and a change of the access carry no values of a client, so an invalid value is a defect of the
 * gateway.
 */
const OF_OWN_CALLS: Record<HostFailureCode, Expected> = {
  ...OF_REQUESTS,
  COLUMN_NOT_FOUND: [500, 'INTERNAL', null],
  KEY_NOT_UNIQUE: [500, 'INTERNAL', null],
  INVALID_CALL: [500, 'INTERNAL', null],
  STATEMENT_REFUSED: [500, 'INTERNAL', null],
};

/** Failures that no operation of a job, or none on rows, can have, so the description does not list them. */
const NOT_OF_JOBS: HostFailureCode[] = [
  'ROW_NOT_FOUND',
  'ROW_CHANGED',
  'PROJECT_BUSY',
  'LOGIN_REFUSED',
  'TIME_LIMIT_REACHED',
];
const NOT_OF_ROWS: HostFailureCode[] = [
  'SOURCE_BUSY',
  'SOURCE_MISSING',
  'ROW_NOT_FOUND',
  'ROW_CHANGED',
  'DATABASE_NAME_HELD',
  'PROOF_FAILED',
  'RULES_NOT_APPLIED',
  'COLLATION_OUTDATED',
];

/** Messages about rows, where they differ from those of other operations. */
const OF_ROWS: Partial<Record<HostFailureCode, unknown>> = {
  STATEMENT_REFUSED: 'planted STATEMENT_REFUSED',
  HOST_TIMEOUT: 'The database host did not respond in time. Try again.',
  TIME_LIMIT_REACHED: expect.stringMatching(/time limit, or waited for a lock, and was ended/),
};

const CODES = Object.keys(HOST_FAILURES) as HostFailureCode[];
const OLDER_THAN_ABANDONED_MS = 16 * 60_000;

let gateway: TripsGateway;
let project: string;
let branch: string;

beforeAll(async () => {
  gateway = await startTripsGateway(0);
  const made = await gateway.api.project('Shop');
  project = made.id;
  branch = made.main_branch.id;
});
afterAll(() => gateway?.stop());

/** Not `Api`, which checks each response against the description: some planted failures are not described. */
async function send(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
  const fullPath = `/api/v1/projects/${project}${path}`;
  const response = await fetch(`${gateway.url}${fullPath}`, {
    method,
    headers: { Authorization: `Bearer ${gateway.token}`, ...headers },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  const { status, headers: received } = response;
  const bodyText = await response.text();
  return {
    status,
    retryAfter: received.get('Retry-After'),
    body: (bodyText ? JSON.parse(bodyText) : {}) as Record<string, unknown>,
    /** @throws ContractError */
    checkDescription: () => checkResponse({ method, path: fullPath, status, headers: received, bodyText }),
  };
}

const hostFailure = (code: HostFailureCode) => ({
  code,
  message: `planted ${code}`,
  ...((code === 'STATEMENT_REFUSED' || code === 'LOGIN_REFUSED') && { sqlstate: '42501' }),
});

const messageOf = (code: FailureCode) =>
  code === 'NOT_FOUND' ? expect.stringMatching(/^No .+ was found/) : FAILURES[code].message;

const expectFailure = (
  { status, retryAfter, body }: Awaited<ReturnType<typeof send>>,
  [expectedStatus, code, expectedRetryAfter]: Expected,
  message: unknown = messageOf(code),
) => {
  expect({ status, retryAfter, error: body.error, message: body.message }).toEqual({
    status: expectedStatus,
    retryAfter: expectedRetryAfter,
    error: code,
    message,
  });
};

describe('a failure of the host reaches the client', () => {
  test.each(CODES)('of a request for rows: %s', async (code) => {
    await gateway.plantFailure(project, 'row.list', hostFailure(code));
    const answer = await send('GET', `/branches/${branch}/tables/book/rows`);
    expectFailure(answer, OF_REQUESTS[code], OF_ROWS[code]);
    if (!NOT_OF_ROWS.includes(code)) answer.checkDescription();
    const isRefusal = code === 'STATEMENT_REFUSED' || code === 'LOGIN_REFUSED';
    if (isRefusal) expect(answer.body.sqlstate).toBe('42501');
    const quotes = JSON.stringify(answer.body).includes('planted');
    expect(quotes).toBe(OF_REQUESTS[code][1] === 'VALIDATION_FAILED' || isRefusal);
  });

  test.each<[HostFailureCode, string | undefined, string]>([
    ['COLUMN_NOT_FOUND', 'order.0.column', 'sort.0.column'],
    ['INVALID_CALL', 'filter.1.value', 'filter.1.value'],
    ['COLUMN_NOT_FOUND', undefined, 'column'],
  ])('%s under the field of the request: %s', async (code, path, field) => {
    await gateway.plantFailure(project, 'row.list', { ...hostFailure(code), path });
    const { body } = await send('GET', `/branches/${branch}/tables/book/rows`);
    expect(body.details).toEqual([{ path: field, message: `planted ${code}` }]);
  });

  // By day every third.
  test.each(CODES.filter((_, n) => IS_NIGHTLY || n % 3 === 0))(
    'of the job that creates a branch: %s',
    async (code) => {
      await gateway.plantFailure(project, 'branch.clone', hostFailure(code));
      const creation = send('POST', '/branches', { branch_name: `a-${randomUUID()}`.slice(0, 20) });
      let hasEnded = false;
      const end = creation.finally(() => {
        hasEnded = true;
      });
      const isOpen = and(eq(jobs.projectId, project), inArray(jobs.status, OPEN_STATUSES));
      // A failure that may pass is retried until the job is old enough to be abandoned.
      while (!hasEnded) {
        const createdAt = new Date(Date.now() - OLDER_THAN_ABANDONED_MS);
        await gateway.db.update(jobs).set({ createdAt }).where(isOpen);
        await sleep(50);
      }
      const answer = await end;
      expectFailure(answer, OF_OWN_CALLS[code]);
      if (!NOT_OF_JOBS.includes(code)) answer.checkDescription();
      expect(JSON.stringify(answer.body)).not.toContain('planted');
      const job = await gateway.api.get(`/api/v1/jobs/${answer.body.job_id}`);
      const [, publicCode] = OF_OWN_CALLS[code];
      expect(job.body).toMatchObject({
        status: 'failed',
        error: { code: publicCode, message: FAILURES[publicCode].message },
      });
    },
  );

  test('of new passwords that are not in effect yet, whatever the failure, under their key', async () => {
    const rotate = () =>
      send('POST', `/branches/${branch}/credentials/rotate`, undefined, { 'Idempotency-Key': 'planted' });
    for (const code of CODES) {
      await gateway.plantFailure(project, 'access.apply', hostFailure(code));
      expectFailure(await rotate(), OF_OWN_CALLS[code]);
    }
    await gateway.plantFailure(project, 'access.apply', null);
    expect(await rotate()).toMatchObject({ status: 200 });
  });
});

test.each([
  ['enrolled', { enrolledAt: null }, { enrolledAt: new Date() }],
  ['accepting projects', { draining: true }, { draining: false }],
])('a new project without any host that is %s: the message names the remedy', async (_, without, as) => {
  await gateway.db.update(hosts).set(without);
  try {
    const { status, body } = await gateway.api.post('/api/v1/projects', { name: 'Refused' });
    expect({ status, ...body }).toMatchObject({
      status: 503,
      error: 'HOST_UNAVAILABLE',
      message: expect.stringMatching(/^No database host accepts new projects: .*operator\.$/),
    });
  } finally {
    await gateway.db.update(hosts).set(as);
  }
});

describe('a refusal of the records reaches the client', () => {
  const RULE = { cidr: '198.51.100.0/24' };

  test.each<[string, () => ReturnType<typeof send>, Expected, message?: string]>([
    [
      'of a reservation',
      () => send('POST', '/branches', { branch_name: 'main-2', source_branch_id: randomUUID() }),
      [404, 'NOT_FOUND', null],
    ],
    [
      'of a deletion',
      () => send('DELETE', `/branches/${branch}`),
      [403, 'BRANCH_PROTECTED', null],
      'The branch is protected. End its protection first; main is never deleted.',
    ],
    [
      'of a lifespan',
      () => send('PATCH', `/branches/${branch}`, { lifespan: '7d' }),
      [403, 'BRANCH_PROTECTED', null],
      'main is always protected, has no end, and keeps its name.',
    ],
    [
      'of a rule',
      async () => {
        await send('POST', '/network-rules', RULE);
        return send('POST', '/network-rules', RULE);
      },
      [409, 'RULE_EXISTS', null],
    ],
    ['of a removed rule', () => send('DELETE', `/network-rules/${randomUUID()}`), [404, 'NOT_FOUND', null]],
    [
      'of a stream',
      async () => {
        const open = () =>
          fetch(`${gateway.url}/api/v1/projects/${project}/metrics/stream`, {
            headers: { Authorization: `Bearer ${gateway.token}` },
          });
        const streams = await Promise.all(Array.from({ length: 20 }, open));
        const refused = await send('GET', '/metrics/stream');
        await Promise.all(streams.map(({ body }) => body?.cancel()));
        return refused;
      },
      [429, 'STREAM_LIMIT_REACHED', null],
    ],
  ])('%s', async (_, request, expected, message) => {
    expectFailure(await request(), expected, message);
  });
});
