import { ApiError } from '../../errors.ts';
import { sendsMail } from '../../mail/mail.ts';
import { bucketOf } from '../../rate-limits/buckets.ts';
import { refund } from '../../rate-limits/consume.ts';
import { enforceLimit } from '../../rate-limits/enforce-limit.ts';
import { accountByEmail } from '../accounts/accounts.ts';
import { hashPassword } from '../accounts/password-hash.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { completeFirstFactor } from '../sessions/first-factor.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { challengesOf } from './challenges-stub.ts';

export interface StartedChallenge {
  challengeId: string;
  /** Unix milliseconds. */
  expiresAt: number;
}

interface SignUpRequest {
  name: string;
  email: string;
  password: string;
}

/**
 * Starts a sign-up: the account is created when the mailed code is submitted. An address that has an account gets the
 * same response after the same work, and its owner gets another mail.
 * @throws ApiError MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function startSignUp(
  context: SignInContext,
  { name, email, password }: SignUpRequest,
): Promise<StartedChallenge> {
  await enforceMailLimit(context);
  const passwordHash = await hashPassword(password);
  const [account] = await accountByEmail(context.db, email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'account_exists' : 'code';
  const request = {
    kind: 'sign_up',
    challengeId,
    address: email,
    mail,
    signUp: { name, passwordHash },
  } as const;
  return { challengeId, ...(await challengesOf(context.env, email).start(request)) };
}

/**
 * Mails a code for a sign-in. An address without an account gets the same response and no mail.
 * @throws ApiError MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function startMagicLink(context: SignInContext, email: string): Promise<StartedChallenge> {
  await enforceMailLimit(context);
  const [account] = await accountByEmail(context.db, email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'code' : 'none';
  const request = { kind: 'magic_link', challengeId, address: email, mail } as const;
  return { challengeId, ...(await challengesOf(context.env, email).start(request)) };
}

/** A client can have mails sent to any address, so its requests are counted. */
async function enforceMailLimit({ env, settings, client }: SignInContext): Promise<void> {
  if (!sendsMail(settings)) throw new ApiError('MAIL_UNAVAILABLE');
  await enforceLimit(env, bucketOf.mailFrom(client.ip));
}

/**
 * Signs in with the mailed code of a sign-up or a magic link. An attempt is counted before the code is evaluated, so
 * that concurrent guesses are counted too.
 * @throws ApiError CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function verifyEmailCode(
  context: SignInContext,
  { email, challengeId, code }: { email: string; challengeId: string; code: string },
): Promise<LoginResponse> {
  const { env, db, client } = context;
  const bucket = bucketOf.wrongCodeFrom(client.ip);
  await enforceLimit(env, bucket);
  const kinds = ['sign_up', 'magic_link'] as const;
  const result = await challengesOf(env, email).verify({ challengeId, kinds, code, client });
  const findAccount = async () => (await accountByEmail(db, email))[0];
  // Submissions that are not evaluated have no limit per account, and audit events are stored forever.
  if (!result.ok && result.failure === 'wrong') {
    recordFailedSignIn(context, findAccount, { first_factor: 'email' });
  }
  const account = result.ok ? await findAccount() : undefined;
  if (!account) throw new ApiError('CODE_WRONG');
  await refund(env, bucket);
  return completeFirstFactor(context, { account }, 'email');
}
