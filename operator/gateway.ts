import { setTimeout as sleep } from 'node:timers/promises';
import { ResponseError } from '../client/response-error.ts';

const REQUEST_MS = 10_000;
const POLL_MS = 1_000;
/** The former version may answer for a moment after an upload. */
const ANSWERS_IN_A_ROW = 3;

/** `ready`; `without_host` if only a connected database host is missing; otherwise the reason. */
export type Answer = 'ready' | 'without_host' | { reason: string };

/** What `/readyz` of the gateway says. @param url its address, with the scheme */
export async function askReadiness(url: string): Promise<Answer> {
  try {
    const response = await fetch(`${url}/readyz`, {
      signal: AbortSignal.timeout(REQUEST_MS),
      redirect: 'manual',
    });
    if (response.ok) return 'ready';
    const body = (await response.json().catch(() => null)) as {
      error?: unknown;
      message?: unknown;
    } | null;
    if (response.status === 503 && body?.error === 'HOST_UNAVAILABLE') return 'without_host';
    if (body?.error === 'SETTINGS_INVALID') return { reason: String(body.message) };
    return { reason: `it responded to /readyz with status ${response.status}` };
  } catch (error) {
    return { reason: reasonOf(error) };
  }
}

/** Why a request had no response: the innermost cause, which names the socket's or TLS's error. */
export function reasonOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause === undefined ? error.message : reasonOf(error.cause);
}

interface Patience {
  seconds: number;
  /** Whether a connected host is part of a right answer. */
  needsHost: boolean;
  pollMs?: number;
}

/**
 * Waits until the gateway answers as it should, several times in a row.
 * @returns null, or why it did not within the time
 */
export async function awaitAnswers(
  url: string,
  { seconds, needsHost, pollMs = POLL_MS }: Patience,
): Promise<string | null> {
  const deadline = Date.now() + seconds * 1000;
  for (let inARow = 0; ; await sleep(pollMs)) {
    const answer = await askReadiness(url);
    const isRight = answer === 'ready' || (answer === 'without_host' && !needsHost);
    inARow = isRight ? inARow + 1 : 0;
    if (inARow === ANSWERS_IN_A_ROW) return null;
    if (isRight || Date.now() <= deadline) continue;
    return typeof answer === 'string' ? 'no database host is connected to it any more' : answer.reason;
  }
}

interface Invitation {
  tenant_id: string;
  name: string;
  owner_email: string;
}

/** The response of a gateway where the tenant has a member, so the invitation was accepted. */
const WAS_ACCEPTED = 'TENANT_EXISTS';

/**
 * Makes a tenant and invites its owner, unless that was done before.
 * @throws ResponseError
 */
export async function inviteOwner(
  url: string,
  platformSecret: string,
  invitation: Invitation,
): Promise<void> {
  const response = await fetch(`${url}/platform/v1/tenants`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${platformSecret}`, 'Content-Type': 'application/json' },
    body: JSON.stringify(invitation),
    signal: AbortSignal.timeout(REQUEST_MS),
  });
  if (response.ok) return;
  const error = new ResponseError(response, await response.json().catch(() => null));
  if (error.code !== WAS_ACCEPTED) throw error;
}
