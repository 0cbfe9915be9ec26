import type { ErrorHandler } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { FAILURES, type Failure, type FailureCode, retryAfterOf } from '../../shared/failures.ts';
import { withoutValues } from '../database/database.ts';
import { ApiError } from '../errors.ts';
import { isLostObject } from '../lost-object.ts';
import { InvalidSettings } from '../settings.ts';
import type { AppContext, AppEnv } from './context.ts';
import { SCIM_TYPE, scimStatusOf } from './failures.ts';
import { messageOf } from './messages.ts';

/**
 * Renders the error envelope. The underlying cause goes only to the log, under the request id.
 * @param mayRepeat whether the same request can be sent again
 */
export function renderFailure(
  c: AppContext,
  { code, fields }: Failure,
  { mayRepeat } = { mayRepeat: true },
): Response {
  const { status } = FAILURES[code];
  const message = messageOf(code, c.var.called && { ...c.var.called, isRead: isReading(c) });
  // The error is about a token only (RFC 6750 section 3.1), and not about a wrong password or code.
  const isAboutToken = code === 'UNAUTHENTICATED';
  if (status === 401)
    c.header(
      'WWW-Authenticate',
      c.var.challenge ?? (isAboutToken ? 'Bearer error="invalid_token"' : 'Bearer'),
    );
  const retryAfter = code === 'RATE_LIMITED' ? fields?.retry_after : retryAfterOf(code);
  if (retryAfter !== null && mayRepeat) c.header('Retry-After', String(retryAfter));
  if (SCIM_PATHS.test(c.req.path)) return renderScimFailure(c, code, fields);
  return c.json(
    { error: code, message, request_id: c.var.requestId, ...fields, ...subjectOf(c, code, fields) },
    status,
  );
}

/** A body can ask an operation that reads for a change. */
const isReading = (c: AppContext): boolean => c.var.called.isRead && !c.var.isChange;

/** The last parameter of the path, unless a NOT_FOUND says what it is about. */
const subjectOf = (c: AppContext, code: FailureCode, fields: Failure['fields']): Failure['fields'] =>
  code === 'NOT_FOUND' && fields?.message === undefined ? c.var.missing?.fields : undefined;

const SCIM_PATHS = /^\/scim\//;

function renderScimFailure(c: AppContext, code: FailureCode, fields: Failure['fields']): Response {
  const { message } = FAILURES[code];
  const details = Array.isArray(fields?.details) ? fields.details : [];
  const texts = details.map(({ path, message: text }) => `${path}: ${text}`);
  const sent = scimStatusOf(code);
  const scimType = code === 'BAD_REQUEST' ? 'invalidSyntax' : 'invalidValue';
  const body = {
    schemas: ['urn:ietf:params:scim:api:messages:2.0:Error'],
    status: String(sent),
    ...(sent === 400 && { scimType }),
    detail: [message, ...texts].join(' ').slice(0, 1000),
  };
  return c.body(JSON.stringify(body), sent, { 'Content-Type': SCIM_TYPE });
}

function failureOf(error: Error): Failure {
  if (error instanceof ApiError) return error.failure;
  // Thrown by Hono for JSON that does not parse.
  if (error instanceof HTTPException && error.status === 400) return { code: 'BAD_REQUEST' };
  return { code: isLostObject(error) ? 'GATEWAY_BUSY' : 'INTERNAL' };
}

/** Clients repeat a 503 with `Retry-After`, and a request whose object was lost may have taken effect. */
const mayRepeat = ({ req }: AppContext): boolean =>
  req.method === 'GET' || (req.method === 'POST' && req.header('Idempotency-Key') !== undefined);

/** Every request fails then. Only the check of readiness says why to those who have no access to the log. */
const failureOfSettings = (error: unknown, c: AppContext): Failure | null =>
  error instanceof InvalidSettings && c.req.path === '/readyz'
    ? {
        code: 'SETTINGS_INVALID',
        fields: {
          message: `The gateway has ${error.message}. Correct them with \`npm run deploy -- --var NAME=value\`, and secrets with \`npm run deploy\`.`,
        },
      }
    : null;

/** Reports the failure to the client, and its reason to the log. */
export const onError: ErrorHandler<AppEnv> = (error, c) => {
  const failure = failureOfSettings(error, c) ?? failureOf(error);
  const { code } = failure;
  const { message: reason, stack } = withoutValues(error);
  c.set('failed', { code, reason, ...(code === 'INTERNAL' && { stack }) });
  return renderFailure(c, failure, { mayRepeat: !isLostObject(error) || mayRepeat(c) });
};
