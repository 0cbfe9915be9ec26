import {
  AuthorizationResponseError,
  allowInsecureRequests,
  customFetch,
  OperationProcessingError,
  ResponseBodyError,
  UnsupportedOperationError,
  WWWAuthenticateChallengeError,
} from 'oauth4webapi';
import type { Failure } from '../../shared/failures.ts';
import { parseForeign, RefusedKey } from '../../shared/foreign-json.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { readBounded } from '../authentication/provider-keys.ts';
import { isLocalGateway, networkProblem } from '../destination.ts';
import type { Settings } from '../settings.ts';

const RESPONSE_TIMEOUT_MS = 10_000;
const RESPONSE_MAX_BYTES = 512 * 1024;
const TOO_MANY_REQUESTS = 429;

/** RFC 6749 section 5.2: the provider refuses the gateway and not the person. */
const CONFIGURATION_ERRORS = new Set([
  'invalid_client',
  'unauthorized_client',
  'unsupported_grant_type',
  'invalid_scope',
]);
/** RFC 6749 section 4.1.2.1. */
const TEMPORARY_ERRORS = new Set(['server_error', 'temporarily_unavailable']);
const NOT_CONFORM = 'OAUTH_RESPONSE_IS_NOT_CONFORM';

/** The provider's own configuration is wrong, and a sign-in cannot succeed before an owner corrects it. */
export class Misconfigured extends Error {}

const unavailable = (reason: string): Failure => ({ code: 'IDP_UNAVAILABLE', reason });
const misconfigured = (reason: string): Failure => ({ code: 'SSO_MISCONFIGURED', reason });
const signInFailed = (reason: string): Failure => ({ code: 'SIGN_IN_FAILED', reason });

/**
 * Discovery documents, key sets and responses of endpoints are read by libraries, which copy their members.
 * @throws Misconfigured for a key that leads to what all requests of an isolate share
 */
function refuseKeys(bytes: Uint8Array): void {
  try {
    parseForeign(new TextDecoder().decode(bytes));
  } catch (error) {
    // Whoever expects JSON reports that it is none.
    if (error instanceof RefusedKey) throw new Misconfigured(`a response of the provider: ${error.message}`);
  }
}

/** A copy of the response with a body that is read up to the limit. */
async function bounded(response: Response): Promise<Response> {
  const tooLarge = () => new Misconfigured('a response of the provider is too large');
  const bytes = await readBounded(response, RESPONSE_MAX_BYTES, tooLarge);
  refuseKeys(bytes);
  const { status, statusText, headers } = response;
  const isEmpty = status === 204 || status === 304;
  return new Response(isEmpty ? null : bytes, { status, statusText, headers });
}

/**
 * What is wrong with an address of a provider, which a tenant has chosen and the gateway calls; null if
 * nothing is.
 */
export function providerAddressProblem(address: string, settings: Pick<Settings, 'BASE_URL'>): string | null {
  if (!URL.canParse(address)) return 'is not a URL';
  const url = new URL(address);
  if (url.username || url.password || url.hash) return 'must have no user or fragment';
  return networkProblem(url, isLocalGateway(settings));
}

/**
 * Fetches an address that a tenant has chosen: https on a public network, or loopback for a local gateway. A
 * redirect is not followed, because it could lead elsewhere.
 * @throws Misconfigured, or the error of the network
 */
export async function fetchFromProvider(
  address: string,
  init: RequestInit,
  settings: Pick<Settings, 'BASE_URL'>,
): Promise<Response> {
  const problem = providerAddressProblem(address, settings);
  if (problem)
    throw new Misconfigured(`the address ${URL.canParse(address) ? new URL(address).origin : ''} ${problem}`);
  const signal = AbortSignal.timeout(RESPONSE_TIMEOUT_MS);
  return bounded(await fetch(address, { ...init, redirect: 'manual', signal }));
}

/** The options of every request of oauth4webapi to a provider of a tenant. */
export const providerOptions = (settings: Settings) => ({
  [customFetch]: (address: string, init: unknown) =>
    fetchFromProvider(address, init as RequestInit, settings),
  // `fetchFromProvider` allows plain HTTP on a loopback address only.
  [allowInsecureRequests]: isLocalGateway(settings),
});

const isUnavailable = (status: number) => status >= 500 || status === TOO_MANY_REQUESTS;

/**
 * Maps what went wrong with a provider: SIGN_IN_FAILED if it refused or sent something that is not valid,
 * IDP_UNAVAILABLE if it did not respond, SSO_MISCONFIGURED if an owner has to correct something.
 */
export function providerFailure(error: unknown): Failure {
  if (error instanceof Misconfigured) return misconfigured(error.message);
  if (error instanceof ResponseBodyError) {
    const reason = `the provider responded with ${error.status} ${error.error.slice(0, 64)}`;
    if (CONFIGURATION_ERRORS.has(error.error)) return misconfigured(reason);
    const isAway = TEMPORARY_ERRORS.has(error.error) || isUnavailable(error.status);
    return isAway ? unavailable(reason) : signInFailed(reason);
  }
  if (error instanceof WWWAuthenticateChallengeError)
    return isUnavailable(error.status)
      ? unavailable(`the provider responded with ${error.status}`)
      : misconfigured(`the provider responded with ${error.status} and wants other client credentials`);
  if (error instanceof AuthorizationResponseError) {
    const reason = `the provider refused: ${error.error.slice(0, 64)}`;
    return TEMPORARY_ERRORS.has(error.error) ? unavailable(reason) : signInFailed(reason);
  }
  if (
    error instanceof OperationProcessingError &&
    error.code === NOT_CONFORM &&
    error.cause instanceof Response
  ) {
    const { status } = error.cause;
    const reason = `the provider responded with status ${status}`;
    return isUnavailable(status) ? unavailable(reason) : misconfigured(reason);
  }
  if (error instanceof OperationProcessingError || error instanceof UnsupportedOperationError)
    return signInFailed(error.message);
  return unavailable(error instanceof Error ? error.message : String(error));
}

/** The outcome of a step with a provider. */
export const withProvider = <T>(work: Promise<T>): Promise<Result<T, Failure>> =>
  work.then(ok, (error: unknown) => fail(providerFailure(error)));
