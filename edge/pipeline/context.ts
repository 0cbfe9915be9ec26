import type { Context } from 'hono';
import type { Failure, FailureCode } from '../../shared/failures.ts';
import { actorWith, type ClientDetails } from '../audit/audit-event.ts';
import type { PreAuth } from '../authentication/own-tokens.ts';
import type { Identity, Principal } from '../authentication/principal.ts';
import type { Actor } from '../database/column-types.ts';
import type { ProviderRow } from '../database/company-schema.ts';
import type { Env } from '../env.ts';
import type { Reach } from '../permissions.ts';
import type { Bucket } from '../rate-limits/buckets.ts';
import type { LimitDecision } from '../rate-limits/limiter-client.ts';
import { currentTraceparent } from '../trace.ts';
import type { CalledOperation } from './messages.ts';

/** The Hono context of routes and middleware. */
export interface AppEnv {
  Bindings: Env;
  Variables: {
    requestId: string;
    /** Set for every valid access token; `principal` only if the token names a tenant. */
    identity: Identity;
    principal: Principal;
    /** Set for a client that passed the first factor but not yet the second. */
    preAuth: PreAuth;
    /** The request has the platform's secret. */
    isPlatform: boolean;
    /** The provider whose SCIM token the request has. */
    scimProvider: ProviderRow;
    /** The projects that the route's action may access: all of the tenant, or the user's own. */
    reach: Reach;
    /** The route's action takes more than seeing a project. */
    isChange: boolean;
    /** Whether it shows what is in a database, not only records. */
    showsRows: boolean;
    /** Whether it gives nothing of what is in the branch of its path. */
    isOfRecord: boolean;
    /** The copy of D1 that this request reads, if it may be a replica. */
    nearestCopy: D1DatabaseSession;
    called: CalledOperation;
    /** NOT_FOUND about the last parameter of the path. */
    missing: Failure;
    /** The `WWW-Authenticate` header of a 401, if it is not that of every path. */
    challenge: string;
    /** Details of a failed request, for the log. */
    failed: { code: FailureCode; reason: string; stack?: string | undefined };
    /** The bucket that a failed authentication is counted against, if it is not that of tokens. */
    failures: Bucket;
    /** Whether the request is within its limit; determined concurrently with what the request reads. */
    limitDecision: Promise<LimitDecision>;
    /** The bucket of that decision. */
    limitBucket: Bucket;
  };
}

export type AppContext = Context<AppEnv>;

/** The client address as seen by Cloudflare. Clients can forge any other address header. */
export const connectingIp = (context: AppContext): string | null =>
  context.req.header('cf-connecting-ip') ?? null;

/** The client of this request, as audit rows name it. */
export function clientOf(context: AppContext): ClientDetails {
  const traceparent = currentTraceparent();
  return {
    ip: connectingIp(context),
    userAgent: context.req.header('user-agent')?.slice(0, 256) ?? null,
    requestId: context.var.requestId,
    ...(traceparent !== undefined && { traceparent }),
  };
}

/** The actor that the audit rows of this request name. */
export const actorOf = (context: AppContext): Actor => actorWith(clientOf(context), context.var.principal);
