import { OperationProcessingError, ResponseBodyError, WWWAuthenticateChallengeError } from 'oauth4webapi';
import { ApiError } from '../../errors.ts';

/** The provider refuses this gateway, not the person: somebody has to set one of them up anew (RFC 6749 section 5.2). */
const OUR_FAULTS = new Set(['invalid_client', 'unauthorized_client', 'unsupported_grant_type']);
/** Errors of a provider that can't answer at the moment (RFC 6749 section 4.1.2.1). */
const ITS_FAULTS = new Set(['server_error', 'temporarily_unavailable']);
/** An ID token that is well made, but of another sign-in. */
const OTHER_SIGN_IN = new Set(['OAUTH_JWT_CLAIM_COMPARISON_FAILED', 'OAUTH_JWT_TIMESTAMP_CHECK_FAILED']);

const TOO_MANY_REQUESTS = 429;

/** @param reason for the log alone; never with what the person sent */
export const signInFailed = (reason: string) => new ApiError('SIGN_IN_FAILED', undefined, reason);
export const providerUnavailable = (reason: string) => new ApiError('IDP_UNAVAILABLE', undefined, reason);

/** What a failed request to the provider means: SIGN_IN_FAILED, IDP_UNAVAILABLE, or an error of our own. */
export function providerFailure(error: Error): Error {
  if (error instanceof ResponseBodyError) {
    const reason = `the provider answered ${error.status} ${error.error}`;
    if (OUR_FAULTS.has(error.error)) return new Error(reason);
    const isAway = ITS_FAULTS.has(error.error) || error.status === TOO_MANY_REQUESTS;
    return isAway ? providerUnavailable(reason) : signInFailed(reason);
  }
  if (error instanceof WWWAuthenticateChallengeError && error.status < 500) {
    return new Error(`the provider answered ${error.status} and asks for other credentials of the client`);
  }
  if (error instanceof OperationProcessingError && OTHER_SIGN_IN.has(error.code ?? '')) {
    return signInFailed(error.message);
  }
  // No connection, no answer in time, a status that says nothing, an answer that can't be read.
  return providerUnavailable(error.message);
}

/** Null for what the provider refused. */
export const unlessRefused = <T>(work: Promise<T>): Promise<T | null> =>
  work.catch((error: unknown) => {
    if (error instanceof ApiError && error.failure.code === 'SIGN_IN_FAILED') return null;
    throw error;
  });
