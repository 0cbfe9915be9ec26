import { OperationProcessingError, ResponseBodyError, WWWAuthenticateChallengeError } from 'oauth4webapi';
import { ApiError } from '../../errors.ts';

/** The provider refuses the gateway and not the person: one of the two is misconfigured (RFC 6749 section 5.2). */
const CONFIGURATION_ERRORS = new Set(['invalid_client', 'unauthorized_client', 'unsupported_grant_type']);
/** The provider is temporarily unavailable (RFC 6749 section 4.1.2.1). */
const TEMPORARY_ERRORS = new Set(['server_error', 'temporarily_unavailable']);
/** The ID token is well-formed but belongs to another sign-in. */
const ID_TOKEN_MISMATCHES = new Set([
  'OAUTH_JWT_CLAIM_COMPARISON_FAILED',
  'OAUTH_JWT_TIMESTAMP_CHECK_FAILED',
]);

const TOO_MANY_REQUESTS = 429;

/** @param reason for the log only; it must not contain anything that the person entered */
export const signInFailed = (reason: string) => new ApiError('SIGN_IN_FAILED', undefined, reason);
export const providerUnavailable = (reason: string) => new ApiError('IDP_UNAVAILABLE', undefined, reason);

/** Maps a failed request to the provider to SIGN_IN_FAILED, IDP_UNAVAILABLE or an internal error. */
export function providerFailure(error: Error): Error {
  if (error instanceof ResponseBodyError) {
    const reason = `the provider responded with ${error.status} ${error.error}`;
    if (CONFIGURATION_ERRORS.has(error.error)) return new Error(reason);
    const isUnavailable = TEMPORARY_ERRORS.has(error.error) || error.status === TOO_MANY_REQUESTS;
    return isUnavailable ? providerUnavailable(reason) : signInFailed(reason);
  }
  if (error instanceof WWWAuthenticateChallengeError && error.status < 500) {
    return new Error(`the provider responded with ${error.status} and requires other client credentials`);
  }
  if (error instanceof OperationProcessingError && ID_TOKEN_MISMATCHES.has(error.code ?? '')) {
    return signInFailed(error.message);
  }
  // A failed connection, a timeout, an unexpected status or an unreadable response.
  return providerUnavailable(error.message);
}

/** Null when the provider refused. */
export const unlessRefused = <T>(work: Promise<T>): Promise<T | null> =>
  work.catch((error: unknown) => {
    if (error instanceof ApiError && error.failure.code === 'SIGN_IN_FAILED') return null;
    throw error;
  });
