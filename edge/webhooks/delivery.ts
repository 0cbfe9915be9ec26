import { backoff } from '../../shared/backoff.ts';
import { fromBase64, toBase64 } from '../crypto/seal.ts';
import { destinationOf, isLocalGateway } from '../destination.ts';
import type { Settings } from '../settings.ts';

const DAY_MS = 24 * 3_600_000;
/** How long a delivery is attempted, and how long it stays in the log afterwards. */
export const DELIVER_FOR_MS = 3 * DAY_MS;

const SECRET_BYTES = 32;

const SECRET_PREFIX = 'whsec_';

const encoder = new TextEncoder();

/** A new secret in the form of Standard Webhooks. */
export const makeSecret = (): string =>
  SECRET_PREFIX + toBase64(crypto.getRandomValues(new Uint8Array(SECRET_BYTES)));

/**
 * The headers that prove a delivery (Standard Webhooks 1.0): its receiver can check sender, content and age.
 */
async function signatureHeaders(
  secret: string,
  { id, body, now }: { id: string; body: string; now: Date },
): Promise<Record<string, string>> {
  const algorithm = { name: 'HMAC', hash: 'SHA-256' };
  const bytes = fromBase64(secret.slice(SECRET_PREFIX.length));
  const key = await crypto.subtle.importKey('raw', bytes, algorithm, false, ['sign']);
  const timestamp = String(Math.floor(now.getTime() / 1000));
  const signature = await crypto.subtle.sign('HMAC', key, encoder.encode(`${id}.${timestamp}.${body}`));
  return {
    'webhook-id': id,
    'webhook-timestamp': timestamp,
    'webhook-signature': `v1,${toBase64(new Uint8Array(signature))}`,
  };
}

/** Longest wait for the response of an endpoint. */
export const DELIVERY_TIMEOUT_MS = 10_000;

/** Why an attempt failed. The cause in detail could describe the gateway's network, so it is not shown. */
export const DELIVERY_ERRORS = ['url_refused', 'timeout', 'connection_failed', 'status'] as const;

export interface Attempt {
  /** HTTP status; null without a response. */
  status: number | null;
  error: (typeof DELIVERY_ERRORS)[number] | null;
}

interface Request {
  url: string;
  secret: string;
  id: string;
  body: string;
  allowed: AllowedUrls;
}

/**
 * Makes one attempt at a delivery. Only a status of 2xx is a success; a redirect is not followed. Never
 * throws.
 */
export async function deliver({ url, secret, id, body, allowed }: Request): Promise<Attempt> {
  if (refusalOfUrl(url, allowed) !== null) return { status: null, error: 'url_refused' };
  const signed = await signatureHeaders(secret, { id, body, now: new Date() });
  try {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json', 'User-Agent': 'branchgate-webhooks', ...signed },
      body,
      // A redirect could lead to an address that the check of the URL refuses.
      redirect: 'manual',
      signal: AbortSignal.timeout(DELIVERY_TIMEOUT_MS),
    });
    // The body is not read, so its size does not matter.
    response.body?.cancel().catch(() => {});
    return { status: response.status, error: response.ok ? null : 'status' };
  } catch (error) {
    const isTimeout = error instanceof Error && error.name === 'TimeoutError';
    return { status: null, error: isTimeout ? 'timeout' : 'connection_failed' };
  }
}

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

const URL_MAX_LENGTH = 2048;
const HTTPS_PORT = 443;

/** What the URLs of webhooks may be. */
export interface AllowedUrls {
  /** The local stack, where loopback addresses are allowed, with http and every port. */
  local: boolean;
  ports: readonly number[];
}

/** What this gateway allows. */
export const allowedUrls = (settings: Pick<Settings, 'BASE_URL' | 'WEBHOOK_PORTS'>): AllowedUrls => ({
  local: isLocalGateway(settings),
  ports: settings.WEBHOOK_PORTS,
});

/** Why a webhook may not have this URL; null if it may. */
export function refusalOfUrl(text: string, { local, ports }: AllowedUrls): string | null {
  if (text.length > URL_MAX_LENGTH || !URL.canParse(text)) return 'Invalid URL.';
  const url = new URL(text);
  const destination = destinationOf(url);
  const isLoopback = local && destination === 'loopback';
  if (url.protocol !== 'https:' && !(isLoopback && url.protocol === 'http:')) return 'The URL must be https.';
  if (url.username !== '' || url.password !== '') return 'The URL must not contain a user name or password.';
  if (destination !== 'public' && !isLoopback) return 'The URL must not be a local or private address.';
  if (!isLoopback && !ports.includes(Number(url.port || HTTPS_PORT)))
    return `The URL must use port ${ports.join(' or ')}.`;
  return null;
}
