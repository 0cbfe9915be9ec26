import { ApiError } from '../../errors.ts';
import { sendsMail } from '../../mail/mail.ts';
import { challengesOf } from '../email-codes/challenges-stub.ts';
import { type SecondFactorContext, secondFactorOf } from './second-factor.ts';

/** After a first factor by e-mail, a second code in the same mailbox proves nothing new. */
const isSecondMail = ({ preAuth }: SecondFactorContext) => preAuth.first_factor === 'email';

/** In lower case; a provider may return the address in any case. */
const addressOf = ({ preAuth }: SecondFactorContext) => preAuth.user.email.toLowerCase();

/**
 * Mails a code for the pre-auth token. A new code replaces the previous one.
 * @returns when the code expires, in Unix milliseconds
 * @throws ApiError FORBIDDEN (`required`), SECOND_FACTOR_ENROLLED, MAIL_UNAVAILABLE
 */
export async function mailCode(context: SecondFactorContext): Promise<number> {
  const { user, step, jti } = context.preAuth;
  if (isSecondMail(context)) throw new ApiError('FORBIDDEN', { required: 'first factor password' });
  const [enrolled] = await secondFactorOf(context.db, user);
  if (step === 'setup' && enrolled) throw new ApiError('SECOND_FACTOR_ENROLLED');
  if (step === 'verify' && enrolled?.method !== 'email') {
    throw new ApiError('FORBIDDEN', { required: 'second factor email' });
  }
  if (!sendsMail(context.settings)) throw new ApiError('MAIL_UNAVAILABLE');
  const address = addressOf(context);
  const request = { kind: 'second_factor', challengeId: jti, address, mail: 'code' } as const;
  return (await challengesOf(context.env, address).start(request)).expiresAt;
}

/** Whether the code is the last one mailed for this pre-auth token. A right code is consumed. */
export async function isMailedCode(context: SecondFactorContext, code: string): Promise<boolean> {
  if (isSecondMail(context)) return false;
  const submission = { challengeId: context.preAuth.jti, kinds: ['second_factor' as const], code };
  return (await challengesOf(context.env, addressOf(context)).verify(submission)).ok;
}
