import { signatureHeaders } from './signature.ts';
import { refusalOfUrl } from './webhook-url.ts';

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
  /** See `refusalOfUrl`. */
  local: boolean;
}

/** Makes one attempt at a delivery. Only a status of 2xx is a success; a redirect is not followed. Never throws. */
export async function deliver({ url, secret, id, body, local }: Request): Promise<Attempt> {
  if (refusalOfUrl(url, local) !== null) return { status: null, error: 'url_refused' };
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
