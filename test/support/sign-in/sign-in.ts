import { Api } from '../api.ts';
import { eventually } from '../eventually.ts';
import type { PostedMail } from './mail-server.ts';

type MailBody = PostedMail['body'];

/** A gateway and the mails that it has sent, oldest first. */
export interface SignInSite {
  url: string;
  mails(): MailBody[];
}

/** Specification 4.2. */
export interface LoginBody {
  access_token: string | null;
  refresh_token: string | null;
  pre_auth_token: string | null;
  requires_2fa: boolean;
  requires_2fa_setup: boolean;
  method: 'totp' | 'email' | null;
  user: { id: string; email: string; role: string } | null;
}

interface ChallengeBody {
  challenge_id: string;
  channel: string;
  expires_at: string;
}

export const PASSWORD = 'correct horse battery';

/** The six digits in a mail. @throws Error when there are none */
export function readCode({ text }: MailBody): string {
  const code = /\b\d{6}\b/.exec(text)?.[0];
  if (code === undefined) throw new Error('the mail has no code');
  return code;
}

/** Waits for a mail to this address. @param number counted from 1 */
export const mailTo = ({ mails }: SignInSite, address: string, number = 1): Promise<MailBody> =>
  eventually(async () => {
    const mail = mails().filter(({ to }) => to.toLowerCase() === address.toLowerCase())[number - 1];
    if (!mail) throw new Error(`no mail ${number} to ${address}`);
    return mail;
  });

/** A different code of six digits. */
export const otherCode = (code: string): string => String((Number(code) + 1) % 1_000_000).padStart(6, '0');

export const askSignUp = ({ url }: SignInSite, email: string, password = PASSWORD) =>
  new Api(url, null).post<{ verification: ChallengeBody }>('/api/v1/auth/signup', {
    name: 'Ada Lovelace',
    email,
    password,
    provider: 'base',
  });

export const askMagicLink = ({ url }: SignInSite, email: string) =>
  new Api(url, null).post<ChallengeBody>('/api/v1/auth/magic-link/start', { email });

export const verifyCode = ({ url }: SignInSite, email: string, challenge_id: string, code: string) =>
  new Api(url, null).post<LoginBody>('/api/v1/auth/magic-link/verify', { email, challenge_id, code });

export const logIn = ({ url }: SignInSite, email: string, password = PASSWORD, provider = 'base') =>
  new Api(url, null).post<LoginBody>('/api/v1/auth/login', { email, password, provider });

/** Creates an account with the mailed code; the address must have received no mail before. */
export async function signUp(site: SignInSite, email: string, password = PASSWORD): Promise<LoginBody> {
  const { status, body } = await askSignUp(site, email, password);
  if (status !== 202) throw new Error(`sign-up: ${status} ${JSON.stringify(body)}`);
  const code = readCode(await mailTo(site, email));
  const verified = await verifyCode(site, email, body.verification.challenge_id, code);
  if (verified.status !== 200) throw new Error(`${verified.status} ${JSON.stringify(verified.body)}`);
  return verified.body;
}
