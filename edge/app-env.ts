import type { Context } from 'hono';
import type { FailureCode } from '../shared/failures.ts';
import { type Actor, actorWith, type ClientDetails } from './audit/actor.ts';
import type { PreAuth } from './authentication/own-tokens.ts';
import type { Reach } from './authentication/permissions.ts';
import type { Identity, Principal } from './authentication/principal.ts';
import { type Database, openDatabase } from './database/database.ts';
import type { Env } from './env.ts';
import type { LimitDecision } from './rate-limits/consume.ts';

/** What the pipeline hands to routes. */
export interface AppEnv {
  Bindings: Env;
  Variables: {
    requestId: string;
    /** Of everybody with a valid access token; the principal, only with a tenant. */
    identity: Identity;
    principal: Principal;
    /** Whoever has passed a first factor and not yet the second. */
    preAuth: PreAuth;
    /** The caller has the platform's secret. */
    isPlatform: boolean;
    /** How far the bearer may go with the route's action. */
    reach: Reach;
    /** What the log says of a request that failed. */
    failed: { code: FailureCode; reason: string; stack?: string | undefined };
    /** Whether the request is within its limit; being found out beside what it reads. */
    limitDecision: Promise<LimitDecision>;
  };
}

export type AppContext = Context<AppEnv>;

export const databaseOf = (context: AppContext): Database => openDatabase(context.env.DB);

/** The address Cloudflare saw. Any other header with an address is the client's own word. */
export const connectingIp = (context: AppContext): string | null =>
  context.req.header('cf-connecting-ip') ?? null;

/** The client of this request, as audit rows name it. */
export const clientOf = (context: AppContext): ClientDetails => ({
  ip: connectingIp(context),
  userAgent: context.req.header('user-agent')?.slice(0, 256) ?? null,
  requestId: context.var.requestId,
});

/** The actor that the audit rows of this request name. */
export const actorOf = (context: AppContext): Actor => actorWith(clientOf(context), context.var.principal);
