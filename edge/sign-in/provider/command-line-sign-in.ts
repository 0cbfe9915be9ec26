import { actorWith } from '../../audit/actor.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import type { Principal } from '../../authentication/principal.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { type ProviderTokens, tokensForCliCode } from './identity-provider.ts';
import { signInByProvider } from './provider-sign-in.ts';
import { attemptOnce } from './single-attempt.ts';

/**
 * Signs in a command line with the authorization code from its loopback address. A provider may invalidate a code only
 * when the verifier is right, so the code is invalidated here.
 * @throws ApiError SIGN_IN_FAILED, TENANT_REQUIRED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function exchangeCliCode(
  context: SignInContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<{ tokens: ProviderTokens; principal: Principal }> {
  const exchange = () => tokensForCliCode(context, parameters);
  const tokens = await attemptOnce(context, 'code', parameters.code, exchange);
  const { principal } = await signInByProvider(context, tokens);
  if (!principal) throw new ApiError('TENANT_REQUIRED');
  const name = `${context.settings.SERVICE_NAME}.cli.login` as const;
  const event = auditEvent(name, actorWith(context.client, principal), {}, context.now());
  await context.db.insert(auditEvents).values(event);
  return { tokens, principal };
}
