import { OpenAPIHono, type RouteConfig, type z as schemas } from '@hono/zod-openapi';
import type { MiddlewareHandler } from 'hono';
import { z } from 'zod';
import type { FailureCode } from '../../shared/failures.ts';
import type { AppEnv } from '../app-env.ts';
import { type Action, allow, requirement } from '../authentication/permissions.ts';
import { ApiError } from '../errors.ts';
import { failureResponses } from './failure-responses.ts';
import { type HeaderName, responseHeaders } from './response-headers.ts';

/**
 * Whom an operation is for: users, as a row of the permission table says; everybody with an access token; whoever has
 * passed a first factor; whoever runs the platform; anybody.
 */
type Access = Action | 'signed_in' | 'pre_auth' | 'platform' | 'public';

interface Operation extends RouteConfig {
  access: Access;
  operationId: string;
  summary: string;
  tags: string[];
  /** Beside those that come with the access and with what the request has. */
  failures?: readonly FailureCode[];
}

const ALWAYS: readonly FailureCode[] = [
  'VALIDATION_FAILED',
  'RATE_LIMITED',
  'INTERNAL',
  'LIMITER_UNAVAILABLE',
];

const COME_WITH_ACCESS: Record<'user' | Exclude<Access, Action>, readonly FailureCode[]> = {
  user: ['UNAUTHENTICATED', 'FORBIDDEN', 'TENANT_REQUIRED', 'KEYS_UNAVAILABLE'],
  signed_in: ['UNAUTHENTICATED', 'KEYS_UNAVAILABLE'],
  pre_auth: ['UNAUTHENTICATED'],
  platform: ['UNAUTHENTICATED'],
  public: [],
};

/** The pipeline checks the secret by the path; an operation that stands elsewhere stays closed. */
const requirePlatform: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.isPlatform) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of the platform');
  await next();
};

/** The same for those who are half signed in, and for those whose token is enough. */
const requirePreAuth: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.preAuth) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of the second factor');
  await next();
};

const requireIdentity: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.identity) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of users');
  await next();
};

const permit =
  (action: Action): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    c.set('reach', allow(c.var.principal, action));
    await next();
  };

/** Every body is taken for JSON; one that is left out, where it may be, is none. */
const allowNoBody: MiddlewareHandler<AppEnv> = async (c, next) => {
  if ((await c.req.text()) === '') c.req.raw.headers.delete('Content-Type');
  await next();
};

/** What the gateway checks before the handler, and says of it in its description. */
function guard(access: Access) {
  if (access === 'public') return { failures: COME_WITH_ACCESS.public, middleware: null, security: [] };
  if (access === 'platform') {
    return {
      failures: COME_WITH_ACCESS.platform,
      middleware: requirePlatform,
      security: [{ platform_secret: [] }],
    };
  }
  if (access === 'pre_auth') {
    return {
      failures: COME_WITH_ACCESS.pre_auth,
      middleware: requirePreAuth,
      security: [{ pre_auth_token: [] }],
    };
  }
  if (access === 'signed_in') {
    return {
      failures: COME_WITH_ACCESS.signed_in,
      middleware: requireIdentity,
      security: [{ access_token: [] }],
      'x-action': 'signed_in',
    };
  }
  const { roles, scope } = requirement(access);
  return {
    failures: COME_WITH_ACCESS.user,
    middleware: permit(access),
    security: [{ access_token: [] }],
    'x-action': access,
    'x-roles': roles,
    'x-scope': scope,
  };
}

/**
 * One operation of the API: what is checked before its handler runs, and how the description tells of it.
 * The same schemas do both. What is not declared (a query parameter, a field) is refused.
 */
export function operation<const O extends Operation>({ access, failures = [], ...route }: O) {
  const { failures: ofAccess, middleware: check, ...guarded } = guard(access);
  const { method, request: { params, body } = {} } = route;
  const codes: FailureCode[] = [
    ...ALWAYS,
    ...ofAccess,
    ...(params ? (['NOT_FOUND'] as const) : []),
    // What is sent is read, also where nothing is to be sent.
    ...(method === 'get' ? [] : (['BAD_REQUEST', 'PAYLOAD_TOO_LARGE'] as const)),
    ...failures,
  ];
  const request = { query: z.strictObject({}), ...route.request };
  const responses = { ...failureResponses(codes), ...route.responses };
  const middleware = [...(check ? [check] : []), ...(body && !body.required ? [allowNoBody] : [])];
  return { ...route, ...guarded, middleware, request, responses } as unknown as Omit<
    O,
    'access' | 'failures'
  >;
}

/** A JSON body that a request must have. */
export const jsonBody = <S extends z.ZodType>(schema: S) => ({
  required: true as const,
  content: { 'application/json': { schema } },
});

/** A JSON body that can be left out. */
export const optionalJsonBody = <S extends z.ZodType>(schema: S) => ({
  ...jsonBody(schema),
  required: false as const,
});

/** An answer with a JSON body. @param headers beside those of every answer */
export const response = <S extends z.ZodType>(description: string, schema: S, ...headers: HeaderName[]) => ({
  description,
  headers: responseHeaders(...headers),
  content: { 'application/json': { schema } },
});

/** An answer without a body. */
export const emptyResponse = (description: string) => ({ description, headers: responseHeaders() });

const detailsOf = (issue: z.core.$ZodIssue) => {
  const named = (...more: string[]) => [...issue.path, ...more].join('.');
  if (issue.code !== 'unrecognized_keys') return [{ path: named(), message: issue.message }];
  return issue.keys.map((key) => ({ path: named(key), message: 'Unknown here' }));
};

interface Reading {
  target: string;
  success: boolean;
  error?: schemas.ZodError;
}

/** Refuses what a schema refused: an id that is none names nothing, all else is told in detail. */
function refuseInvalid({ target, success, error }: Reading): void {
  if (success) return;
  if (target === 'param') throw new ApiError('NOT_FOUND');
  throw new ApiError('VALIDATION_FAILED', { details: error?.issues.flatMap(detailsOf) });
}

/** A set of operations, to be joined to the app. */
export const operations = () => new OpenAPIHono<AppEnv>({ defaultHook: refuseInvalid });
