import { TOTP } from 'otpauth';
import { Api } from '../api.ts';
import { type LoginBody, logIn, type SignInSite, signUp } from './sign-in.ts';

interface SetUpBody {
  secret: string;
  totp_uri: string;
  method: string;
}

interface RecoveryBody {
  recovery_codes: string[];
}

/** The operations of a pre-auth token. @param login the body that contains the token */
export function stepOf({ url }: SignInSite, login: LoginBody) {
  const { pre_auth_token: token } = login;
  if (token === null) throw new Error(`no second step: ${JSON.stringify(login)}`);
  const post = <B = LoginBody>(name: string, body?: unknown) =>
    new Api(url, token).post<B>(`/api/v1/auth/2fa/${name}`, body);
  return {
    token,
    login,
    setUp: () => post<SetUpBody>('setup'),
    verifySetUp: (code: string) => post<LoginBody & RecoveryBody>('verify-setup', { code }),
    verifyLogin: (code: string) => post('verify-login', { code }),
    replaceCodes: (code: string) => post<LoginBody & RecoveryBody>('recovery-codes', { code }),
    recover: (code: string, remove_factor?: boolean) => post('recover', { code, remove_factor }),
    skip: () => post('skip'),
    mail: () => post<{ channel: string; expires_at: string }>('email'),
  };
}

export type SecondStep = ReturnType<typeof stepOf>;

/** Logs in with a password. @returns the second step */
export async function stepAfterPassword(site: SignInSite, email: string) {
  const { status, body } = await logIn(site, email);
  if (status !== 200) throw new Error(`login: ${status} ${JSON.stringify(body)}`);
  return stepOf(site, body);
}

/**
 * @param ahead steps of 30 seconds from now. One step ahead is accepted, and stays valid for over a minute.
 */
export const appCode = (secret: string, ahead = 0): string =>
  new TOTP({ secret }).generate({ timestamp: Date.now() + ahead * 30_000 });

/** A new account with an authenticator app. The code of the current step is used, the next one is not. */
export async function enrolledAccount(site: SignInSite, email: string) {
  await signUp(site, email);
  const step = await stepAfterPassword(site, email);
  const { secret } = (await step.setUp()).body;
  const usedCode = appCode(secret);
  const { status, body } = await step.verifySetUp(usedCode);
  if (status !== 200) throw new Error(`verify-setup: ${status} ${JSON.stringify(body)}`);
  return { secret, usedCode, login: body, recoveryCodes: body.recovery_codes };
}

/** Status and error code of a refused request. */
export const refusal = ({ status, body }: { status: number; body: unknown }) => {
  const { error, required } = body as { error?: string; required?: string };
  return required === undefined ? [status, error] : [status, error, required];
};
