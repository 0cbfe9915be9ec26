import { TOTP } from 'otpauth';
import { Api } from '../api.ts';
import { type LoginBody, logIn, type SignInSite, signUp } from './sign-in.ts';

interface SetUpBody {
  secret: string;
  totp_uri: string;
  method: string;
}

/** What can be done with a pre-auth token. @param login the answer that it was in */
export function stepOf({ url }: SignInSite, login: LoginBody) {
  const { pre_auth_token: token } = login;
  if (token === null) throw new Error(`no second step: ${JSON.stringify(login)}`);
  const post = <B = LoginBody>(name: string, body?: unknown) =>
    new Api(url, token).post<B>(`/api/v1/auth/2fa/${name}`, body);
  return {
    token,
    login,
    setUp: () => post<SetUpBody>('setup'),
    verifySetUp: (code: string) => post('verify-setup', { code }),
    verifyLogin: (code: string) => post('verify-login', { code }),
    skip: () => post('skip'),
    mail: () => post<{ channel: string; expires_at: string }>('email'),
  };
}

export type SecondStep = ReturnType<typeof stepOf>;

/** The second step of a new login by password. */
export async function stepAfterPassword(site: SignInSite, email: string) {
  const { status, body } = await logIn(site, email);
  if (status !== 200) throw new Error(`login: ${status} ${JSON.stringify(body)}`);
  return stepOf(site, body);
}

/** @param ahead steps of 30 seconds from now; one ahead is taken too, and stays good for a minute and more */
export const appCode = (secret: string, ahead = 0): string =>
  new TOTP({ secret }).generate({ timestamp: Date.now() + ahead * 30_000 });

/** A new account with an app. This step's code is used up; the next one's is good. */
export async function enrolledAccount(site: SignInSite, email: string) {
  await signUp(site, email);
  const step = await stepAfterPassword(site, email);
  const { secret } = (await step.setUp()).body;
  const usedCode = appCode(secret);
  const { status, body } = await step.verifySetUp(usedCode);
  if (status !== 200) throw new Error(`verify-setup: ${status} ${JSON.stringify(body)}`);
  return { secret, usedCode, login: body };
}

/** What a refused request was told, without its words. */
export const refusal = ({ status, body }: { status: number; body: unknown }) => {
  const { error, required } = body as { error?: string; required?: string };
  return required === undefined ? [status, error] : [status, error, required];
};
