export {
  Challenges,
  default,
  HostLink,
  ProjectCoordinator,
  RateLimiter,
  WebhookSender,
} from '../../../edge/worker.ts';
