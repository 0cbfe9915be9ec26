import { app } from './app.ts';
import type { Env } from './env.ts';

export { HostLink } from './host-link/host-link.ts';
export { ProjectCoordinator } from './projects/project-coordinator.ts';
export { RateLimiter } from './rate-limits/rate-limiter.ts';
export { Challenges } from './sign-in/email-codes/challenges.ts';
export { WebhookSender } from './webhooks/webhook-sender.ts';

export default { fetch: app.fetch } satisfies ExportedHandler<Env>;
