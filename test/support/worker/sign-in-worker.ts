export {
  Challenges,
  default,
  HostLink,
  ProjectCoordinator,
  RateLimiter,
} from '../../../edge/worker.ts';
