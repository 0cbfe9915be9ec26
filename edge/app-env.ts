import type { Context } from 'hono';
import type { FailureCode } from '../shared/failures.ts';
import type { Actor } from './audit/actor.ts';
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

/** Whom the audit row of this request names. */
export const actorOf = (context: AppContext): Actor => actorAs(context, context.var.principal);

/** The same, of somebody who signs in with it; without a user's id where it is not sure that it is they. */
export const actorAs = <Id extends string | null>(
  context: AppContext,
  { userId, email, tenantId }: { userId: Id; email: string; tenantId: string },
) => ({
  userId,
  email,
  tenantId,
  ip: connectingIp(context),
  userAgent: context.req.header('user-agent')?.slice(0, 256) ?? null,
  requestId: context.var.requestId,
});
