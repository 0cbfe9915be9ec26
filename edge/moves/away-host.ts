import type { MethodResult } from '../../shared/protocol/operations.ts';
import { HostCallError } from '../hosts/host-client.ts';
import { failureClass, HostLostError, SourceUnsuitableError } from '../jobs/saga.ts';

/** For how long a move waits for a host that is away. */

/** A host that is away for longer counts as lost: what it has of a move is left to its agent and its reconciliation. */
export const LOST_MS = 15 * 60_000;
/** Work that has taken longer had a host that was there. */
export const REACHED_MS = 30_000;

type Findings = MethodResult<'transfer.copy'>['findings'];

/** The former host may have been killed. Without an end, a project would stay closed, or a wrong address unnoticed. */
const AWAY_MS = { beforeCopy: 15 * 60_000, whileCopying: Number.POSITIVE_INFINITY, whileClosed: 120_000 };

/** The former host is not reached, or every place for following is taken on the other one. */
const PASSING: readonly Findings[number]['problem'][] = ['connection', 'address', 'limit'];

/**
 * Returns the error that ends an attempt; a host that was not reached is tried again.
 * @param since when that is abandoned after its limit
 */
export function failureOf(findings: Findings, since: Date, limit: keyof typeof AWAY_MS, about = ''): Error {
  const text = about + findings.map(({ message }) => message).join(' ');
  if (findings.length === 0 || !findings.every(({ problem }) => PASSING.includes(problem)))
    return new SourceUnsuitableError(text);
  if (Date.now() - since.getTime() < AWAY_MS[limit]) return new Error(text);
  return limit === 'whileClosed' ? new HostLostError(text) : new SourceUnsuitableError(text);
}

/** An attempt has this time at least, also after a gateway that was away. */
const ATTEMPT_MS = 10_000;

/**
 * Runs `work` while both hosts are closed.
 * @throws HostLostError if it does not succeed within two minutes of the fence
 */
export async function whileClosed<T>(fencedAt: Date | null, work: () => Promise<T>): Promise<T> {
  const left = () => (fencedAt?.getTime() ?? 0) + AWAY_MS.whileClosed - Date.now();
  const isLate = new HostLostError('A host did not respond for two minutes while the project was closed.');
  const timeout = Promise.withResolvers<never>();
  const timer = setTimeout(() => timeout.reject(isLate), Math.max(ATTEMPT_MS, left()));
  try {
    return await Promise.race([work(), timeout.promise]);
  } catch (error) {
    if (left() > 0 || failureClass(error) !== 'transient') throw error;
    throw new HostLostError(`${isLate.message} ${error instanceof Error ? error.message : ''}`.trim());
  } finally {
    clearTimeout(timer);
  }
}

/** Failures of a host that does not respond; a busy host is no such failure. */
const AWAY: readonly string[] = ['HOST_UNAVAILABLE', 'HOST_TIMEOUT', 'POSTGRES_UNAVAILABLE'];

export const isAway = (error: unknown) => error instanceof HostCallError && AWAY.includes(error.code);
