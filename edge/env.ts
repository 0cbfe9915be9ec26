import type { HostLinkRpc } from './hosts/host-link-rpc.ts';
import type { CoordinatorRpc } from './projects/coordinator-rpc.ts';
import type { RateLimiterRpc } from './rate-limits/rate-limiter-rpc.ts';
import type { ChallengesRpc } from './sign-in/email-codes/challenges-rpc.ts';
import type { WebhookSenderRpc } from './webhooks/webhook-sender-rpc.ts';

/** Bindings of `wrangler.toml`. Variables and secrets are unchecked until `readSettings` has parsed them. */
export interface Env {
  DB: D1Database;
  HOST_LINK: DurableObjectNamespace<HostLinkRpc>;
  PROJECT_COORDINATOR: DurableObjectNamespace<CoordinatorRpc>;
  RATE_LIMITER: DurableObjectNamespace<RateLimiterRpc>;
  CHALLENGES: DurableObjectNamespace<ChallengesRpc>;
  WEBHOOK_SENDER: DurableObjectNamespace<WebhookSenderRpc>;
  [variable: string]: unknown;
}
