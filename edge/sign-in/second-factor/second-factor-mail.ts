import { type AppContext, databaseOf } from '../../app-env.ts';
import { ApiError } from '../../errors.ts';
import { sendsMail } from '../../mail/mail.ts';
import { readSettings } from '../../settings.ts';
import { challengesOf } from '../email-codes/challenges-stub.ts';
import { secondFactorOf } from './second-factor.ts';

/** A code by mail proves nothing new to whoever has just read a code in the same mailbox. */
const isSecondMail = (c: AppContext) => c.var.preAuth.first_factor === 'email';

/** Of the user, whose identity provider may write it in any case. */
const addressOf = (c: AppContext) => c.var.preAuth.user.email.toLowerCase();

/**
 * Mails a code for the pre-auth token; a new one replaces the last one.
 * @returns until when it holds: Unix milliseconds
 * @throws ApiError FORBIDDEN (`required`), SECOND_FACTOR_ENROLLED, MAIL_UNAVAILABLE
 */
export async function mailCode(c: AppContext): Promise<number> {
  const { user, step, jti } = c.var.preAuth;
  if (isSecondMail(c)) throw new ApiError('FORBIDDEN', { required: 'first factor password' });
  const [enrolled] = await secondFactorOf(databaseOf(c), user);
  if (step === 'setup' && enrolled) throw new ApiError('SECOND_FACTOR_ENROLLED');
  if (step === 'verify' && enrolled?.method !== 'email') {
    throw new ApiError('FORBIDDEN', { required: 'second factor email' });
  }
  if (!sendsMail(readSettings(c.env))) throw new ApiError('MAIL_UNAVAILABLE');
  const address = addressOf(c);
  const order = { kind: 'second_factor', challengeId: jti, address, mail: 'code' } as const;
  return (await challengesOf(c.env, address).start(order)).expiresAt;
}

/** Whether the code is the one that was mailed last for this pre-auth token. It is spent by that. */
export async function isMailedCode(c: AppContext, code: string): Promise<boolean> {
  if (isSecondMail(c)) return false;
  const answer = { challengeId: c.var.preAuth.jti, kinds: ['second_factor' as const], code };
  const { outcome } = await challengesOf(c.env, addressOf(c)).verify(answer);
  return outcome === 'right';
}
