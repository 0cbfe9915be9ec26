import { type AppContext, actorAs, databaseOf } from '../../app-env.ts';
import { auditEvent } from '../../audit/audit-event.ts';
import type { Principal } from '../../authentication/principal.ts';
import { auditEvents } from '../../database/schema.ts';
import { ApiError } from '../../errors.ts';
import { useOnce } from '../../rate-limits/single-use.ts';
import { readSettings } from '../../settings.ts';
import { type ProviderTokens, tokensOfCliCode } from './identity-provider.ts';
import { signInByProvider } from './provider-sign-in.ts';

/**
 * Signs a command line in with the code that came to its loopback address. The provider spends a code only when the
 * verifier was right, so it is spent here.
 * @throws ApiError SIGN_IN_FAILED, TENANT_REQUIRED, IDP_UNAVAILABLE, KEYS_UNAVAILABLE
 */
export async function exchangeCliCode(
  c: AppContext,
  parameters: Record<'code' | 'redirect_uri' | 'code_verifier', string>,
): Promise<{ tokens: ProviderTokens; principal: Principal }> {
  const tokens = await useOnce(c, 'code', parameters.code, () => tokensOfCliCode(c, parameters));
  const { principal } = await signInByProvider(c, tokens);
  if (!principal) throw new ApiError('TENANT_REQUIRED');
  const name = `${readSettings(c.env).SERVICE_NAME}.cli.login` as const;
  const event = auditEvent(name, actorAs(c, principal), {}, new Date());
  await databaseOf(c).insert(auditEvents).values(event);
  return { tokens, principal };
}
