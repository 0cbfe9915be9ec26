import { Hono } from 'hono';
import { z } from 'zod';
import type { FailureCode } from '../../shared/failures.ts';
import { parseForeign } from '../../shared/foreign-json.ts';
import { QUERY_PARAMETERS_MAX, SQL_BATCH_MAX } from '../../shared/limits.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { ISOLATION_LEVELS } from '../../shared/protocol/sql-operations.ts';
import { Scalar } from '../../shared/protocol/tables.ts';
import { ApiError, unwrap } from '../errors.ts';
import { callHostForClient } from '../hosts/host-client.ts';
import { ACTION_OF_ROLE } from '../permissions.ts';
import { boundBody } from '../pipeline/bounded-body.ts';
import { type AppContext, type AppEnv, actorOf, connectingIp } from '../pipeline/context.ts';
import { countRequest, refuseKnownGuesser, requireAdmission } from '../pipeline/limits.ts';
import { alsoPermit } from '../pipeline/operation.ts';
import { onError, renderFailure } from '../pipeline/render-failure.ts';
import { primaryOf } from '../pipeline/replica-choice.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { readSettings } from '../settings.ts';
import { readTarget, type SqlTarget } from '../sql/admit-client.ts';
import { auditExecuted } from '../sql/audit.ts';
import { type ConnectionString, readConnectionString } from '../sql/connection-string.ts';
import { branchOf } from './in-project.ts';

const REQUEST_BYTES_MAX = 512 * 1024;

const Statement = z.object({
  query: z.string(),
  params: z.array(Scalar.nullable()).max(QUERY_PARAMETERS_MAX).default([]),
});
const Body = z.union([z.object({ queries: z.array(Statement).max(SQL_BATCH_MAX) }), Statement]);

/** An error in the form of a PostgreSQL client. */
class SqlFailure extends Error {
  readonly code: string;

  constructor(code: string, message: string) {
    super(message);
    this.code = code;
  }
}

/** One text for a login that is unknown or closed, and for a wrong password. SQLSTATE `invalid_password`. */
const wrongPassword = ({ login }: ConnectionString) =>
  new SqlFailure('28P01', `password authentication failed for user "${login}"`);

/** SQLSTATEs of failures that are the client's to read. The others stay those of the API. */
const STATES: Partial<Record<FailureCode, string>> = {
  NOT_FOUND: '28P01',
  BRANCH_NOT_ACTIVE: '28P01',
  DATABASES_CLOSED: '28P01',
  FORBIDDEN: '42501',
  BRANCH_PROTECTED: '42501',
  BRANCH_FOLLOWING: '25006',
  WRITE_BLOCKED: '25006',
  BAD_REQUEST: '08P01',
  VALIDATION_FAILED: '08P01',
  PAYLOAD_TOO_LARGE: '54000',
  HOST_BUSY: '53300',
  PROJECT_BUSY: '53300',
  HOST_UNAVAILABLE: '57P03',
  HOST_UPGRADE_REQUIRED: '57P03',
  DATABASE_SERVER_UNAVAILABLE: '57P03',
  // The statements may have run.
  HOST_TIMEOUT: '08007',
};

/** SQLSTATE `too_many_connections`, in the 429 of a limit. */
const RATE_STATE = '53300';

function renderError(error: Error, c: AppContext): Response | Promise<Response> {
  if (error instanceof SqlFailure)
    return c.json({ severity: 'FATAL', code: error.code, message: error.message }, 400);
  if (!(error instanceof ApiError)) return onError(error, c);
  const { code, fields } = error.failure;
  if (code === 'RATE_LIMITED') return renderFailure(c, { code, fields: { ...fields, code: RATE_STATE } });
  const state = STATES[code];
  const response = onError(error, c) as Response;
  if (state === undefined) return response;
  return response.json().then((body) => {
    const { message, details } = body as { message: string; details?: { path: string; message: string }[] };
    const detail = details?.map(({ path, message }) => `${path}: ${message}`).join('; ');
    return c.json({ severity: 'FATAL', code: state, message, ...(detail && { detail }) }, 400);
  });
}

/** @throws SqlFailure */
async function readStatements(c: AppContext) {
  const text = await c.req.text();
  if (new TextEncoder().encode(text).length > REQUEST_BYTES_MAX)
    throw new SqlFailure('54000', `a request has at most ${REQUEST_BYTES_MAX / 1024} KiB`);
  let json: unknown;
  try {
    json = parseForeign(text);
  } catch {
    throw new SqlFailure('08P01', 'the body must be JSON: {"query", "params"} or {"queries"}');
  }
  const body = Body.safeParse(json);
  if (!body.success) {
    const [problem] = body.error.issues;
    throw new SqlFailure('08P01', `the body must be {"query", "params"} or {"queries"}: ${problem?.message}`);
  }
  const isBatch = 'queries' in body.data;
  const statements = 'queries' in body.data ? body.data.queries : [body.data];
  return {
    statements: statements.map(({ query, params }) => ({ text: query, params })),
    transaction: isBatch ? transactionOf(c) : null,
    raw_text: isTrue(c, 'neon-raw-text-output'),
    row_arrays: isTrue(c, 'neon-array-mode'),
  };
}

const isTrue = (c: AppContext, header: string) => c.req.header(header)?.toLowerCase() === 'true';

/** @throws SqlFailure */
function transactionOf(c: AppContext): NonNullable<Params<'sql.run'>['transaction']> {
  const given = c.req.header('neon-batch-isolation-level');
  const plain = (level: string) => level.replaceAll(' ', '').toLowerCase();
  const isolation = ISOLATION_LEVELS.find((level) => plain(level) === plain(given ?? '')) ?? null;
  if (given !== undefined && isolation === null)
    throw new SqlFailure('22023', 'Neon-Batch-Isolation-Level names no isolation level');
  return {
    isolation,
    read_only: isTrue(c, 'neon-batch-read-only'),
    deferrable: isTrue(c, 'neon-batch-deferrable'),
  };
}

/** Sets the principal of a request that has a token, and counts nothing. @throws ApiError */
export type Identify = (c: AppContext) => Promise<void>;

/**
 * Decides about a client with the password of the login. Wrong passwords are counted for the branch and the client's
 * address, apart from the attempts at the ports.
 * @throws SqlFailure, ApiError RATE_LIMITED
 */
async function admitByPassword(c: AppContext, url: ConnectionString): Promise<SqlTarget> {
  const address = connectingIp(c);
  const guesses = bucketOf.wrongSqlPassword(url.branchId, address);
  const { CREDENTIAL_KEYS } = readSettings(c.env);
  const [, target] = await Promise.all([
    refuseKnownGuesser(c, guesses),
    readTarget(primaryOf(c), CREDENTIAL_KEYS, url, { address, checksPassword: true }),
  ]);
  if (!target) {
    countRequest(c, guesses);
    await requireAdmission(c);
    throw wrongPassword(url);
  }
  countRequest(c, bucketOf.sql(target.tenantId, url.branchId));
  await requireAdmission(c);
  return target;
}

/**
 * Decides about a client with a token as `POST …/query` does, for the login that the URL names.
 * @throws SqlFailure, ApiError
 */
async function admitByToken(c: AppContext, url: ConnectionString): Promise<SqlTarget> {
  const { CREDENTIAL_KEYS } = readSettings(c.env);
  const found = await readTarget(primaryOf(c), CREDENTIAL_KEYS, url, {
    address: connectingIp(c),
    checksPassword: false,
  });
  countRequest(c, bucketOf.sql(c.var.principal.tenantId, url.branchId));
  alsoPermit(c, 'rows.read');
  const action = ACTION_OF_ROLE[url.role];
  const reference = { project_id: found?.projectId ?? crypto.randomUUID(), branch_ref: url.branchId };
  const { branch } = await branchOf(c, reference, action ? 'change' : 'read');
  if (action) alsoPermit(c, action);
  if (action && (branch.isDefault || branch.protected)) throw new ApiError('BRANCH_PROTECTED');
  if (!found) throw wrongPassword(url);
  return found;
}

type Reply = MethodResult<'sql.run'>;

/** The reply as the host writes it. A part is asked for when the client has taken the one before. */
function streamOf(c: AppContext, hostId: string, { text, reply_id }: Reply, bytes: number): ReadableStream {
  const encoder = new TextEncoder();
  const first = encoder.encode(text);
  let offset = first.length;
  const read = (at: number, id: string) =>
    callHostForClient(c.env, hostId, 'sql.read', { reply_id: id, offset: at });
  return new ReadableStream(
    {
      start: (controller) => controller.enqueue(first),
      pull: async (controller) => {
        if (reply_id === null || offset >= bytes) return controller.close();
        const part = unwrap(await read(offset, reply_id));
        offset += part.bytes;
        controller.enqueue(encoder.encode(part.text));
        if (offset >= bytes) controller.close();
      },
      // The client has left. The host drops a reply with its last byte, and would keep it for 30 s otherwise.
      cancel: () => {
        if (reply_id !== null && offset < bytes) c.executionCtx.waitUntil(read(bytes - 1, reply_id));
      },
    },
    { highWaterMark: 0 },
  );
}

/** Admits and runs. The records may be older than the host's access: then they are read again, once. */
async function run(
  c: AppContext,
  admit: () => Promise<SqlTarget>,
  url: ConnectionString,
  statements: Awaited<ReturnType<typeof readStatements>>,
): Promise<{ target: SqlTarget; reply: Reply }> {
  const address = connectingIp(c);
  let target = await admit();
  for (let tries = 1; ; tries += 1) {
    if (target.isMoving) throw new SqlFailure('57P03', 'the project is moving to another host: try again');
    if (!target.isAdmitted || address === null)
      throw new SqlFailure('28000', `no network rule lets ${address} use SQL over HTTP on this branch`);
    const isUndone = c.var.principal !== undefined && url.role === 'read_only';
    const reply = unwrap(
      await callHostForClient(c.env, target.hostId, 'sql.run', {
        project_id: target.projectId,
        branch_id: url.branchId,
        database: url.database,
        role: url.role,
        revision: target.revision,
        address,
        password: isUndone ? null : target.password,
        application_name: url.applicationName,
        ...statements,
      }),
    );
    if (reply.outcome !== 'outdated') return { target, reply };
    if (tries === 2) throw new ApiError('HOST_BUSY');
    target = await admit();
  }
}

/**
 * SQL over HTTP, as the clients of Neon's serverless protocol speak it. A door of the database and not of the API: it
 * decides itself who may use it, has limits of its own, and its errors are those of PostgreSQL.
 */
export function sqlRoutes(identify: Identify) {
  const router = new Hono<AppEnv>();
  router.post('/sql', boundBody, async (c) => {
    const url = readConnectionString(c.req.header('neon-connection-string') ?? '');
    if (!url)
      throw new SqlFailure(
        '08P01',
        'Neon-Connection-String must be the URL of a branch, as the connection page shows it',
      );
    const hasToken = c.req.header('authorization') !== undefined;
    if (hasToken) await identify(c);
    const statements = await readStatements(c);
    const admit = () => (hasToken ? admitByToken(c, url) : admitByPassword(c, url));
    const { target, reply } = await run(c, admit, url, statements);
    const { tenantId, projectId, hostId } = target;
    const about = { tenantId, projectId, branchId: url.branchId, role: url.role };
    const counts = {
      requests: 1,
      statements: statements.statements.length,
      refused: reply.outcome === 'refused' ? 1 : 0,
    };
    auditExecuted(
      primaryOf(c),
      { ...about, actor: hasToken ? actorOf(c) : null },
      counts,
      new Date(),
      (work) => c.executionCtx.waitUntil(work),
    );
    c.header('Content-Type', 'application/json');
    const body = reply.reply_id === null ? reply.text : streamOf(c, hostId, reply, reply.bytes);
    return c.body(body, reply.outcome === 'done' ? 200 : 400);
  });
  router.onError((error, c) => renderError(error, c));
  return router;
}
