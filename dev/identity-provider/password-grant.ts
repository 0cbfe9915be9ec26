import { errors, type TokenEndpointGrantContext } from 'oidc-provider';
import { accountOf, LOCAL_PASSWORD } from './accounts.ts';

/** RFC 6749 section 4.3. The library does not implement it, but many enterprise providers do. */
export const PASSWORD_GRANT = 'password';

interface Parameters {
  username?: string;
  password?: string;
  scope?: string;
}

/** Issues tokens for an account and its password to a client that is allowed the grant. */
export async function passwordGrant(ctx: TokenEndpointGrantContext<Parameters>): Promise<void> {
  const { provider, client, params } = ctx.oidc;
  const account = accountOf(params.username ?? '');
  if (!account || params.password !== LOCAL_PASSWORD)
    throw new errors.InvalidGrant('wrong e-mail or password');
  const accountId = account.email;
  const scope = params.scope ?? '';
  const grant = new provider.Grant({ accountId, clientId: client.clientId });
  grant.addOIDCScope(scope);
  const token = { accountId, client, grantId: await grant.save(), gty: PASSWORD_GRANT, scope };
  const accessToken = new provider.AccessToken(token);
  const refreshToken = new provider.RefreshToken(token);
  ctx.oidc.entity('AccessToken', accessToken);
  ctx.oidc.entity('RefreshToken', refreshToken);
  ctx.body = {
    access_token: await accessToken.save(),
    refresh_token: await refreshToken.save(),
    token_type: 'Bearer',
    expires_in: accessToken.expiration,
    scope,
  };
}
