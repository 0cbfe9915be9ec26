import type { BranchgateClient, Schemas } from '../client/client.ts';
import { dataOf } from '../client/response-error.ts';
import { CommandError } from './exit-codes.ts';
import type { SignInTokens } from './loopback-sign-in.ts';
import { askText, isAttended } from './terminal.ts';

const pending = (login: Schemas['LoginResponse']) => ({ Authorization: `Bearer ${login.pre_auth_token}` });

/**
 * Signs in to an account of the gateway, with its second factor if it has one.
 * @throws CommandError, ResponseError
 */
export async function signInByPassword(
  { api }: BranchgateClient,
  email: string,
  password: string,
  code: string | undefined,
): Promise<SignInTokens> {
  let login: Schemas['LoginResponse'] = await dataOf(
    api.POST('/api/v1/auth/login', { body: { email, password } }),
  );
  if (login.requires_2fa) {
    const given = code ?? (await askCode());
    const headers = pending(login);
    login = await dataOf(api.POST('/api/v1/auth/2fa/verify-login', { body: { code: given }, headers }));
  } else if (login.requires_2fa_setup) {
    const skipped = await api.POST('/api/v1/auth/2fa/skip', { headers: pending(login) });
    if (!skipped.data)
      throw new CommandError(
        'notSignedIn',
        "The account needs a second factor. Sign in once at the gateway's console to set it up.",
      );
    login = skipped.data;
  }
  if (login.access_token === null) throw new CommandError('notSignedIn', 'The sign-in was not completed.');
  return { access_token: login.access_token, refresh_token: login.refresh_token };
}

function askCode(): Promise<string> {
  if (!isAttended()) throw new CommandError('usage', 'A code of the second factor is required. Give --code.');
  return askText('Code of the second factor');
}
