import type { HostLink } from './host-link/host-link.ts';
import type { ProjectCoordinator } from './projects/coordinator.ts';
import type { RateLimiter } from './rate-limits/rate-limiter.ts';
import type { Challenges } from './sign-in/email-codes/challenges.ts';

/** Bindings of `wrangler.toml`. Variables and secrets are strings until `readSettings` has checked them. */
export interface Env {
  DB: D1Database;
  HOST_LINK: DurableObjectNamespace<HostLink>;
  PROJECT_COORDINATOR: DurableObjectNamespace<ProjectCoordinator>;
  RATE_LIMITER: DurableObjectNamespace<RateLimiter>;
  CHALLENGES: DurableObjectNamespace<Challenges>;
  [variable: string]: unknown;
}
