import type { Coordinators } from './coordinator/coordinator-rpc.ts';
import type { DatabaseBinding } from './database/database.ts';
import type { HostLinks } from './hosts/host-client.ts';
import type { Limiters } from './rate-limits/limiter-client.ts';
import type { ChallengeObjects } from './sign-in/challenge.ts';
import type { WebhookSenders } from './webhooks/webhook.ts';

/**
 * Bindings of `wrangler.toml`; each room declares those that it uses. Variables and secrets are unchecked
 * until `readSettings` has parsed them.
 */
export interface Env
  extends DatabaseBinding,
    HostLinks,
    Coordinators,
    Limiters,
    ChallengeObjects,
    WebhookSenders {
  /** The console's static files; missing where the gateway runs without them. */
  ASSETS?: Fetcher;
  [variable: string]: unknown;
}
