import type { ErrorHandler } from 'hono';
import { HTTPException } from 'hono/http-exception';
import { FAILURES, type Failure, retryAfterOf } from '../../shared/failures.ts';
import type { AppContext, AppEnv } from '../app-env.ts';
import { withoutValues } from '../database/query-error.ts';
import { ApiError } from '../errors.ts';
import { isLostObject } from '../lost-object.ts';

/**
 * Renders the error envelope. The underlying cause goes only to the log, under the request id.
 * @param mayRepeat whether the same request can be sent again
 */
export function renderFailure(
  c: AppContext,
  { code, fields }: Failure,
  { mayRepeat } = { mayRepeat: true },
): Response {
  const { status, message } = FAILURES[code];
  // The error is about a token only (RFC 6750 section 3.1), and not about a wrong password or code.
  const isAboutToken = code === 'UNAUTHENTICATED';
  if (status === 401) c.header('WWW-Authenticate', isAboutToken ? 'Bearer error="invalid_token"' : 'Bearer');
  const retryAfter = code === 'RATE_LIMITED' ? fields?.retry_after : retryAfterOf(code);
  if (retryAfter !== null && mayRepeat) c.header('Retry-After', String(retryAfter));
  return c.json({ error: code, message, request_id: c.var.requestId, ...fields }, status);
}

function failureOf(error: Error): Failure {
  if (error instanceof ApiError) return error.failure;
  // Thrown by Hono for JSON that does not parse.
  if (error instanceof HTTPException && error.status === 400) return { code: 'BAD_REQUEST' };
  return { code: isLostObject(error) ? 'LIMITER_UNAVAILABLE' : 'INTERNAL' };
}

/** Clients repeat a 503 with `Retry-After`, and a request whose object was lost may have taken effect. */
const mayRepeat = ({ req }: AppContext): boolean =>
  req.method === 'GET' || (req.method === 'POST' && req.header('Idempotency-Key') !== undefined);

/** Reports the failure to the client, and its reason to the log. */
export const onError: ErrorHandler<AppEnv> = (error, c) => {
  const failure = failureOf(error);
  const { code } = failure;
  const { message: reason, stack } = withoutValues(error);
  c.set('failed', { code, reason, ...(code === 'INTERNAL' && { stack }) });
  return renderFailure(c, failure, { mayRepeat: !isLostObject(error) || mayRepeat(c) });
};
