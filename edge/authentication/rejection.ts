import { ApiError } from '../errors.ts';

/** Why a token was refused. The log gets the reason; the client gets one 401 for all of them. */
export type RejectionReason =
  | 'token_missing'
  | 'token_scheme_not_bearer'
  | 'token_too_long'
  | 'token_kind_unknown'
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
  | 'own_token_wrong'
  | 'platform_secret_wrong';

/** The one public answer to every refused token: which check failed would help only a forger. */
export const rejected = (reason: RejectionReason): ApiError =>
  new ApiError('UNAUTHENTICATED', undefined, reason);
