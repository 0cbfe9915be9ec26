import { OpenAPIHono, type RouteConfig, type z as schemas } from '@hono/zod-openapi';
import type { MiddlewareHandler } from 'hono';
import { z } from 'zod';
import type { FailureCode } from '../../shared/failures.ts';
import type { Principal } from '../authentication/principal.ts';
import { ApiError, unwrap } from '../errors.ts';
import { missing, type Resource } from '../missing.ts';
import { type Action, allow, isAction, isChange, requirement } from '../permissions.ts';
import type { AppContext, AppEnv } from './context.ts';
import { announce, DEPRECATIONS } from './deprecations.ts';
import { failureResponses, scimFailureResponses } from './failures.ts';
import './invalid-value.ts';
import { type HeaderName, responseHeaders } from './response-headers.ts';

/**
 * Who may call an operation: users that the named row of the permission table allows; every user with an
 * access token (`signed_in`); a client that passed a first factor (`pre_auth`); the platform operator;
 * an identity provider with its SCIM token; everyone.
 */
type Access = Action | 'signed_in' | 'pre_auth' | 'platform' | 'scim' | 'public';

/**
 * The machines (API keys, workloads) that may call an operation: those limited to branches too, only those
 * that are not, of these only those bound to no project (`of_tenant`), or none. The first is the default of
 * paths with a `{branch_ref}`, which `inBranch` limits. Any other operation that declares it has to limit
 * itself to `branchesOf`.
 */
type Machines = 'of_branches' | 'unlimited' | 'of_tenant' | 'none';

/**
 * What an operation gives of the branch of its path: nothing but its record, or what is in it, which is the
 * default. `inBranch` refuses the latter to those who get masked data only. An operation that makes something
 * of other branches has to call `requireData` for each.
 */
type Gives = 'record' | 'data';

interface Operation extends RouteConfig {
  access: Access;
  machines?: Machines;
  gives?: Gives;
  operationId: string;
  summary: string;
  tags: string[];
  /** In addition to those that `operation` derives from the access and the request. */
  failures?: readonly FailureCode[];
}

const ALWAYS: readonly FailureCode[] = [
  'VALIDATION_FAILED',
  'RATE_LIMITED',
  'INTERNAL',
  'LIMITER_UNAVAILABLE',
  'GATEWAY_BUSY',
];

const FAILURES_OF_ACCESS: Record<'user' | Exclude<Access, Action>, readonly FailureCode[]> = {
  user: ['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'TENANT_REQUIRED', 'KEYS_UNAVAILABLE'],
  signed_in: ['UNAUTHENTICATED', 'FORBIDDEN', 'NOT_FOUND', 'KEYS_UNAVAILABLE'],
  pre_auth: ['UNAUTHENTICATED'],
  platform: ['UNAUTHENTICATED'],
  scim: ['UNAUTHENTICATED'],
  public: [],
};

/** The pipeline checks the secret by path prefix, so an operation under another path is rejected here. */
const requirePlatform: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.isPlatform) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of the platform');
  await next();
};

const requireScim: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.scimProvider) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of SCIM');
  await next();
};

const requirePreAuth: MiddlewareHandler<AppEnv> = async (c, next) => {
  if (!c.var.preAuth) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of the second factor');
  await next();
};

/** @throws ApiError NOT_FOUND for a machine limited to branches, FORBIDDEN for any other machine */
function admitMachine({ machine }: Principal, machines: Machines): void {
  if (!machine || machines === 'of_branches') return;
  if (machine.branchPattern !== null) {
    const { fields } = missing('operation');
    const message = 'This credential is limited to branches, and this operation is not about one.';
    throw new ApiError('NOT_FOUND', { ...fields, message }, 'limited to branches');
  }
  if (machines === 'of_tenant' && machine.projectId !== null)
    throw new ApiError('FORBIDDEN', { required: 'a credential for all projects' }, 'bound to a project');
  if (machines === 'none') throw new ApiError('FORBIDDEN', { required: 'a user' }, 'not for machines');
}

const requireIdentity =
  (machines: Machines): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    if (!c.var.identity) throw new ApiError('UNAUTHENTICATED', undefined, 'no path of users');
    if (c.var.principal) admitMachine(c.var.principal, machines);
    await next();
  };

const permit =
  (action: Action, machines: Machines, gives: Gives): MiddlewareHandler<AppEnv> =>
  async (c, next) => {
    admitMachine(c.var.principal, machines);
    c.set('isOfRecord', gives === 'record');
    alsoPermit(c, action);
    await next();
  };

/**
 * Permits a request that needs a further action because of its body. To be called before the project is read.
 * @throws ApiError FORBIDDEN
 */
export function alsoPermit(c: AppContext, action: Action): void {
  c.set('reach', unwrap(allow(c.var.principal, action)));
  c.set('isChange', isChange(action));
  c.set('showsRows', action === 'rows.read');
}

/** An absent optional body is an empty object, so that its validation applies the defaults of the schema. */
const allowNoBody: MiddlewareHandler<AppEnv> = async (c, next) => {
  // Hono's type of the cache has no promises, which are what it caches.
  if ((await c.req.text()) === '')
    c.req.bodyCache = { text: Promise.resolve('{}') } as unknown as typeof c.req.bodyCache;
  await next();
};

/** An operation without a body accepts none, because an ignored field would look like an accepted one. */
const refuseBody: MiddlewareHandler<AppEnv> = async (c, next) => {
  const text = await c.req.text();
  if (text !== '') {
    const body = z.strictObject({}).safeParse(readJson(text));
    if (!body.success)
      throw new ApiError('VALIDATION_FAILED', { details: body.error.issues.flatMap(detailsOf) });
  }
  await next();
};

function readJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError('BAD_REQUEST');
  }
}

/** Whether an operation changes nothing, unless its handler calls `alsoPermit` for a change. */
const isReadOperation = (access: Access, method: string): boolean =>
  method === 'get' || (isAction(access) && requirement(access).scope === 'read');

/** The check that runs before the handler, and how the OpenAPI document describes it. */
function guard(access: Access, machines: Machines, gives: Gives) {
  if (access === 'public') return { failures: FAILURES_OF_ACCESS.public, middleware: null, security: [] };
  if (access === 'platform') {
    return {
      failures: FAILURES_OF_ACCESS.platform,
      middleware: requirePlatform,
      security: [{ platform_secret: [] }],
    };
  }
  if (access === 'scim') {
    return {
      failures: FAILURES_OF_ACCESS.scim,
      middleware: requireScim,
      security: [{ scim_token: [] }],
    };
  }
  if (access === 'pre_auth') {
    return {
      failures: FAILURES_OF_ACCESS.pre_auth,
      middleware: requirePreAuth,
      security: [{ pre_auth_token: [] }],
    };
  }
  if (access === 'signed_in') {
    return {
      failures: FAILURES_OF_ACCESS.signed_in,
      middleware: requireIdentity(machines),
      security: [{ access_token: [] }],
      'x-action': 'signed_in',
      'x-machines': machines,
    };
  }
  const { roles, scope } = requirement(access);
  return {
    failures: FAILURES_OF_ACCESS.user,
    middleware: permit(access, machines, gives),
    security: [{ access_token: [] }],
    'x-action': access,
    'x-roles': roles,
    'x-scope': scope,
    'x-machines': machines,
    'x-gives': gives,
  };
}

/** What each parameter of a path names, and whether it can be a name. */
const NAMED: Record<string, { resource: Resource; isName?: true }> = {
  project_id: { resource: 'project' },
  branch_ref: { resource: 'branch', isName: true },
  table: { resource: 'table', isName: true },
  deleted_branch_id: { resource: 'deleted_branch' },
  snapshot_id: { resource: 'snapshot' },
  bisection_id: { resource: 'bisection' },
  change_id: { resource: 'change' },
  rule_id: { resource: 'network_rule' },
  trust_id: { resource: 'trust' },
  key_id: { resource: 'api_key' },
  grant_id: { resource: 'oauth_grant' },
  webhook_id: { resource: 'webhook' },
  job_id: { resource: 'job' },
  user_id: { resource: 'member' },
  invitation_id: { resource: 'invitation' },
  session_id: { resource: 'session' },
  tenant_id: { resource: 'tenant' },
  host_id: { resource: 'host' },
  provider_id: { resource: 'identity_provider' },
  domain: { resource: 'domain', isName: true },
  id: { resource: 'scim_resource' },
};

/** The failure for a parameter of the path. @throws Error for one that the table above lacks */
function missingParameter(name: string, value: string | undefined) {
  const named = NAMED[name];
  if (!named) throw new Error(`the path parameter ${name} names nothing`);
  return missing(named.resource, named.isName && value);
}

/** NOT_FOUND is about the last parameter of the path, unless the failure says otherwise. */
function nameSubject(path: string): MiddlewareHandler<AppEnv>[] {
  const last = /.*\{(\w+)\}/.exec(path)?.[1];
  if (last === undefined) return [];
  missingParameter(last, undefined);
  return [
    async (c, next) => {
      c.set('missing', missingParameter(last, c.req.param(last)));
      await next();
    },
  ];
}

/**
 * One operation of the API. The same schemas validate its requests and describe it in the OpenAPI document.
 * Undeclared query parameters and fields are rejected.
 */
export function operation<const O extends Operation>({
  access,
  machines,
  gives = 'data',
  failures = [],
  ...route
}: O) {
  const ofPath = route.path.includes('{branch_ref}') ? 'of_branches' : 'unlimited';
  const { failures: ofAccess, middleware: check, ...guarded } = guard(access, machines ?? ofPath, gives);
  const { method, request: { params, body } = {} } = route;
  const codes: FailureCode[] = [
    ...ALWAYS,
    ...ofAccess,
    ...(params ? (['NOT_FOUND'] as const) : []),
    // `boundBody` reads the body of every such request, even where the operation takes none.
    ...(method === 'get' ? [] : (['BAD_REQUEST', 'PAYLOAD_TOO_LARGE'] as const)),
    ...failures,
  ];
  const request = { query: z.strictObject({}), ...route.request };
  const ofFailures = access === 'scim' ? scimFailureResponses(codes) : failureResponses(codes);
  const responses = { ...ofFailures, ...route.responses };
  const withoutBody = method === 'get' ? [] : [refuseBody];
  const forBody = body ? (body.required ? [] : [allowNoBody]) : withoutBody;
  const deprecations = DEPRECATIONS[route.operationId] ?? [];
  const announced = deprecations.length > 0 ? [announce(deprecations)] : [];
  const isRead = isReadOperation(access, method);
  const called: MiddlewareHandler<AppEnv> = async (c, next) => {
    c.set('called', { id: route.operationId, isRead });
    await next();
  };
  const middleware = [
    called,
    ...nameSubject(route.path),
    ...announced,
    ...(check ? [check] : []),
    ...forBody,
  ];
  const isDeprecated = deprecations.some(({ field }) => field === null);
  return {
    ...(isDeprecated && { deprecated: true }),
    ...route,
    ...guarded,
    middleware,
    request,
    responses,
  } as unknown as Omit<O, 'access' | 'machines' | 'gives' | 'failures'>;
}

/** A required JSON body. */
export const jsonBody = <S extends z.ZodType>(schema: S) => ({
  required: true as const,
  content: { 'application/json': { schema } },
});

/** A required form, as OAuth has it. */
export const formBody = <S extends z.ZodType>(schema: S) => ({
  required: true as const,
  content: { 'application/x-www-form-urlencoded': { schema } },
});

/** An optional JSON body. Its schema has to accept an empty object. */
export const optionalJsonBody = <S extends z.ZodType>(schema: S) => ({
  ...jsonBody(schema),
  required: false as const,
});

/** A response with a JSON body. @param headers in addition to those of every response */
export const response = <S extends z.ZodType>(description: string, schema: S, ...headers: HeaderName[]) => ({
  description,
  headers: responseHeaders(...headers),
  content: { 'application/json': { schema } },
});

/** A response without a body. */
export const emptyResponse = (description: string) => ({ description, headers: responseHeaders() });

const detailsOf = (issue: z.core.$ZodIssue) => {
  const pathTo = (...keys: string[]) => [...issue.path, ...keys].join('.');
  if (issue.code !== 'unrecognized_keys') return [{ path: pathTo(), message: issue.message }];
  return issue.keys.map((key) => ({ path: pathTo(key), message: 'Unrecognized field.' }));
};

/** The errors of OAuth have one description (RFC 6749 section 5.2). */
const oauthProblem = (error: schemas.ZodError | undefined) =>
  (error?.issues.flatMap(detailsOf) ?? []).map(({ path, message }) => `${path}: ${message}`).join('; ');

interface Validation {
  target: string;
  success: boolean;
  error?: schemas.ZodError;
}

/** Endpoints whose clients know the errors of OAuth only. */
const OAUTH_PATHS = /^\/api\/v1\/auth\/oauth\//;

/** The error of a request to an endpoint of OAuth, in a form, a query, or as JSON in a registration (RFC 7591 section 3.2.2). */
function oauthFailure(target: string, error: schemas.ZodError | undefined): ApiError {
  const isAddress = error?.issues.some(({ path: [field] }) => field === 'redirect_uris');
  const ofJson = isAddress ? 'invalid_redirect_uri' : 'invalid_client_metadata';
  const code = target === 'json' ? ofJson : 'invalid_request';
  return new ApiError(code, { error_description: oauthProblem(error) });
}

/**
 * Maps a failed validation: a malformed id in the path is reported as not found, everything else in detail.
 */
function rejectInvalid({ target, success, error }: Validation, { req }: AppContext): void {
  if (success) return;
  if (target === 'param') throw ApiError.of(missingParameter(String(error?.issues[0]?.path[0]), undefined));
  if (target === 'form' || OAUTH_PATHS.test(req.path)) throw oauthFailure(target, error);
  throw new ApiError('VALIDATION_FAILED', { details: error?.issues.flatMap(detailsOf) });
}

/** A router for a group of operations; `app.ts` mounts it. */
export const operations = () => new OpenAPIHono<AppEnv>({ defaultHook: rejectInvalid });
