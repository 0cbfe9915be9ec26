import { app } from './app.ts';
import type { Env } from './env.ts';

export { ProjectCoordinator } from './coordinator/project-coordinator.ts';
export { HostLink } from './host-link/host-link.ts';
export { RateLimiter } from './rate-limits/rate-limiter.ts';
export { Challenges } from './sign-in/challenges.ts';
export { WebhookSender } from './webhooks/webhook-sender.ts';

export default { fetch: app.fetch } satisfies ExportedHandler<Env>;
