import type { Failure } from '../../shared/failures.ts';
import { fail } from '../../shared/result.ts';

/** Why a token was rejected. Only the log contains the reason; clients get the same 401 for all of them. */
export type RejectionReason =
  | 'token_missing'
  | 'token_scheme_not_bearer'
  | 'token_too_long'
  | 'token_kind_unknown'
  | 'no_provider'
  | 'token_form_wrong'
  | 'footer_missing'
  | 'footer_too_long'
  | 'footer_wrong'
  | 'key_unknown'
  | 'signature_wrong'
  | 'claims_wrong'
  | 'token_expired'
  | 'token_not_yet_valid'
  | 'token_of_former_tenant'
  | 'session_ended'
  | 'own_token_wrong'
  | 'api_key_form_wrong'
  | 'api_key_unknown'
  | 'api_key_expired'
  | 'trust_gone'
  | 'grant_gone'
  | 'scim_token_unknown'
  | 'platform_secret_wrong';

/** The failure of every rejected token. Naming the failed check would help an attacker. */
export const rejection = (reason: RejectionReason): Failure => ({ code: 'UNAUTHENTICATED', reason });

/** As `rejection`, as the outcome of a check. */
export const rejected = (reason: RejectionReason) => fail(rejection(reason));
