import { backoff } from '../../shared/backoff.ts';
import { DELIVER_FOR_MS } from './delivery-store.ts';

/** After so many failures in a row the endpoint gets one delivery at a time, as a probe. */
const PROBE_AFTER = 3;
const RETRY = { first: 5_000, longest: 3_600_000 };

/** The last attempts at an endpoint, over all deliveries. Times are Unix milliseconds. */
export interface EndpointHealth {
  /** Failures in a row. */
  failures: number;
  failingSince: number | null;
  /** No attempt before. */
  pausedUntil: number;
}

export const HEALTHY: EndpointHealth = { failures: 0, failingSince: null, pausedUntil: 0 };

export const isProbed = ({ failures }: EndpointHealth): boolean => failures >= PROBE_AFTER;

/** @param random from 0 to 1 */
export function afterFailure(health: EndpointHealth, now: number, random: number): EndpointHealth {
  const failures = health.failures + 1;
  const pause = failures < PROBE_AFTER ? 0 : backoff(failures - PROBE_AFTER, { ...RETRY, random });
  return { failures, failingSince: health.failingSince ?? now, pausedUntil: now + pause };
}

/** Milliseconds until the next attempt at one delivery. @param attempts failed ones so far */
export const retryAfter = (attempts: number, random: number): number =>
  backoff(attempts - 1, { ...RETRY, random });

/** Whether the webhook is to be disabled: every attempt of three days has failed. */
export const isHopeless = ({ failingSince }: EndpointHealth, now: number): boolean =>
  failingSince !== null && now - failingSince >= DELIVER_FOR_MS;
