import { type AppContext, actorAs, connectingIp, databaseOf } from '../../app-env.ts';
import { ApiError } from '../../errors.ts';
import { sendsMail } from '../../mail/mail.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit } from '../../rate-limits/limit-requests.ts';
import { readSettings } from '../../settings.ts';
import { accountByEmail } from '../accounts/accounts.ts';
import { hashPassword } from '../accounts/password-hash.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { afterFirstFactor } from '../sessions/first-factor.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import { challengesOf } from './challenges-stub.ts';

export interface StartedChallenge {
  challengeId: string;
  /** Unix milliseconds. */
  expiresAt: number;
}

interface SignUpOrder {
  name: string;
  email: string;
  password: string;
}

/**
 * Begins a sign-up: the account is made when the code of its mail is brought. An address that has an account gets the
 * same answer after the same work, and its owner another mail.
 * @throws ApiError MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function startSignUp(
  c: AppContext,
  { name, email, password }: SignUpOrder,
): Promise<StartedChallenge> {
  await requireMail(c);
  const passwordHash = await hashPassword(password);
  const [account] = await accountByEmail(databaseOf(c), email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'account_exists' : 'code';
  const order = {
    kind: 'sign_up',
    challengeId,
    address: email,
    mail,
    signUp: { name, passwordHash },
  } as const;
  return { challengeId, ...(await challengesOf(c.env, email).start(order)) };
}

/**
 * Mails a code to sign in with, and nothing to an address without an account.
 * @throws ApiError MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function startMagicLink(c: AppContext, email: string): Promise<StartedChallenge> {
  await requireMail(c);
  const [account] = await accountByEmail(databaseOf(c), email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'code' : 'none';
  const order = { kind: 'magic_link', challengeId, address: email, mail } as const;
  return { challengeId, ...(await challengesOf(c.env, email).start(order)) };
}

/** Whoever asks may have mails sent to strangers, so what they ask for is counted. */
async function requireMail(c: AppContext): Promise<void> {
  if (!sendsMail(readSettings(c.env))) throw new ApiError('MAIL_UNAVAILABLE');
  await enforceLimit(c, bucketOf.mailFrom(connectingIp(c)));
}

/**
 * Signs in whoever has read the mail of a sign-up or a magic link. Counted before it is looked at, as a password is.
 * @throws ApiError CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function verifyEmailCode(
  c: AppContext,
  { email, challengeId, code }: { email: string; challengeId: string; code: string },
): Promise<LoginResponse> {
  const charge = bucketOf.wrongCodeFrom(connectingIp(c));
  await enforceLimit(c, charge);
  const { ip, userAgent, requestId } = actorAs(c, { userId: null, email, tenantId: '' });
  const kinds = ['sign_up', 'magic_link'] as const;
  const answer = { challengeId, kinds, code, from: { ip, userAgent, requestId } };
  const { outcome } = await challengesOf(c.env, email).verify(answer);
  const accountNow = async () => (await accountByEmail(databaseOf(c), email))[0];
  // What is not looked at has no bound of its own, and an audit row stays for ever.
  if (outcome === 'wrong') recordFailedSignIn(c, accountNow, { first_factor: 'email' });
  const account = outcome === 'right' ? await accountNow() : undefined;
  if (!account) throw new ApiError('CODE_WRONG');
  await refund(c.env, charge);
  return afterFirstFactor(c, { account }, 'email');
}
