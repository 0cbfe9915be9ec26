import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import type { ClientDetails } from '../audit/audit-event.ts';
import { hashPassword } from '../crypto/password-hash.ts';
import { type Database, type DatabaseBinding, openDatabase } from '../database/database.ts';
import type { AccountRow } from '../database/people-schema.ts';
import { sendsMail } from '../mail/mail.ts';
import { bucketOf } from '../rate-limits/buckets.ts';
import { enforce, refund } from '../rate-limits/limiter-client.ts';
import { acceptInvitation, accountByEmail, createAccount, findAccount } from './accounts.ts';
import { type ChallengeKind, type CodeSubmission, challengesOf, type EmailChallenge } from './challenge.ts';
import { completeFirstFactor, type LoginResponse, recordFailedSignIn } from './first-factor.ts';
import { resetPassword } from './set-password.ts';
import type { SignInContext } from './sign-in-context.ts';
import { isInvitationOpen, requireOtherWays } from './sign-up.ts';

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
 * Starts a sign-up: the account is created when the mailed code is submitted. An address that has an account
 * gets the same response after the same work, and its owner gets another mail.
 * @returns or SIGN_UP_CLOSED, MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function startSignUp(
  context: SignInContext,
  { name, email, password }: SignUpRequest,
): Promise<Result<StartedChallenge, Failure>> {
  // First, so that the response is the same for every address.
  if (context.settings.SIGN_UP !== 'open') return fail({ code: 'SIGN_UP_CLOSED' });
  const other = await requireOtherWays(context, email);
  if (!other.ok) return other;
  const counted = await enforceUnaskedMail(context, 'sign_up', email);
  if (!counted.ok) return counted;
  const passwordHash = await hashPassword(password, context.settings.PASSWORD_COST);
  if (!passwordHash.ok) return passwordHash;
  const [account] = await accountByEmail(context.db, email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'account_exists' : 'code';
  const request = {
    kind: 'sign_up',
    challengeId,
    address: email,
    mail,
    signUp: { name, passwordHash: passwordHash.value },
  } as const;
  return ok({ challengeId, ...(await challengesOf(context.env, email).start(request)) });
}

/**
 * Mails a code for a sign-in or for a new password. An address without an account gets the same response and
 * no mail.
 * @returns or MAIL_UNAVAILABLE, RATE_LIMITED
 */
async function mailCodeToAccount(
  context: SignInContext,
  kind: 'magic_link' | 'password_reset',
  email: string,
): Promise<Result<StartedChallenge, Failure>> {
  const other = await requireOtherWays(context, email);
  if (!other.ok) return other;
  const counted = await enforceMailLimit(context);
  if (!counted.ok) return counted;
  const [account] = await accountByEmail(context.db, email);
  const challengeId = crypto.randomUUID();
  const mail = account ? 'code' : 'none';
  const request = { kind, challengeId, address: email, mail } as const;
  return ok({ challengeId, ...(await challengesOf(context.env, email).start(request)) });
}

/** @returns or MAIL_UNAVAILABLE, RATE_LIMITED */
export const startMagicLink = (context: SignInContext, email: string) =>
  mailCodeToAccount(context, 'magic_link', email);

/** @returns or MAIL_UNAVAILABLE, RATE_LIMITED */
export const startPasswordReset = (context: SignInContext, email: string) =>
  mailCodeToAccount(context, 'password_reset', email);

/**
 * A client can have mails sent to any address, so its requests are counted.
 * @returns or MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function enforceMailLimit({
  env,
  settings,
  client,
}: SignInContext): Promise<Result<null, Failure>> {
  if (!sendsMail(settings)) return fail({ code: 'MAIL_UNAVAILABLE' });
  return enforce(env, bucketOf.mailFrom(client.ip));
}

/**
 * Limits mails to people who have not asked for them: each mailbox gets some a day, from all senders and for all its aliases together.
 * @returns or MAIL_UNAVAILABLE, RATE_LIMITED
 */
export async function enforceUnaskedMail(
  context: SignInContext,
  kind: 'sign_up' | 'invitation',
  email: string,
): Promise<Result<null, Failure>> {
  const counted = await enforceMailLimit(context);
  return counted.ok ? enforce(context.env, bucketOf.unaskedMail(kind, email)) : counted;
}

interface MailedCode {
  email: string;
  challengeId: string;
  code: string;
}

/**
 * Submits a mailed code. An attempt is counted before the code is evaluated, so that concurrent guesses are
 * counted too.
 * @param submission what the code needs in addition, and the kinds of challenge that it may solve
 * @returns the account of the address
 *   or CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
async function submitCode(
  { env, db, client, ...context }: SignInContext,
  { email, challengeId, code }: MailedCode,
  { password, ...submission }: Pick<CodeSubmission, 'kinds' | 'name'> & { password?: string },
): Promise<Result<AccountRow, Failure>> {
  const other = await requireOtherWays({ db }, email);
  if (!other.ok) return other;
  const bucket = bucketOf.wrongCodeFrom(client.ip);
  const counted = await enforce(env, bucket);
  if (!counted.ok) return counted;
  // Hashed before the code is evaluated, so that every attempt costs the same work.
  const hashed =
    password === undefined ? ok(undefined) : await hashPassword(password, context.settings.PASSWORD_COST);
  if (!hashed.ok) {
    await refund(env, bucket);
    return hashed;
  }
  const passwordHash = hashed.value;
  const result = await challengesOf(env, email).verify({
    ...submission,
    ...(passwordHash !== undefined && { passwordHash }),
    challengeId,
    code,
    client,
  });
  const identify = () => findAccount(db, email);
  // Submissions that are not evaluated have no limit per account, and audit events are stored forever.
  if (!result.ok && result.failure === 'wrong') {
    recordFailedSignIn({ env, db, client, ...context }, identify, { first_factor: 'email' });
  }
  const account = result.ok ? await identify() : undefined;
  if (!account) return fail({ code: 'CODE_WRONG' });
  await refund(env, bucket);
  return ok(account);
}

const SIGN_IN_KINDS: readonly ChallengeKind[] = ['sign_up', 'magic_link'];

/**
 * Signs in with the mailed code of a sign-up or a magic link.
 * @returns or CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function verifyEmailCode(
  context: SignInContext,
  code: MailedCode,
): Promise<Result<LoginResponse, Failure>> {
  // A sign-up that began before they were closed makes no account.
  const kinds = context.settings.SIGN_UP === 'open' ? SIGN_IN_KINDS : SIGN_IN_KINDS.slice(1);
  const account = await submitCode(context, code, { kinds });
  return account.ok ? completeFirstFactor(context, { account: account.value }, 'email') : account;
}

/**
 * Sets a new password with a mailed code, and ends all sessions.
 * @returns or CODE_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export const finishPasswordReset = (
  context: SignInContext,
  code: MailedCode,
  password: string,
): Promise<Result<AccountRow, Failure>> => submitCode(context, code, { kinds: ['password_reset'], password });

/**
 * Creates the account of an invitation with its mailed code, and signs in.
 * @returns or SIGN_UP_CLOSED, CODE_WRONG, ACCOUNT_EXISTS, RATE_LIMITED, LIMITER_UNAVAILABLE
 */
export async function finishInvitation(
  context: SignInContext,
  code: MailedCode,
  { name, password }: { name: string; password: string },
): Promise<Result<LoginResponse, Failure>> {
  if (!(await isInvitationOpen(context, code))) return fail({ code: 'SIGN_UP_CLOSED' });
  const submitted = await submitCode(context, code, { kinds: ['invitation'], name, password });
  if (!submitted.ok) return submitted;
  const account = submitted.value;
  // The address got an account of its own after it was invited.
  if (account.id !== code.challengeId) return fail({ code: 'ACCOUNT_EXISTS' });
  return completeFirstFactor(context, { account }, 'email');
}

interface Solved {
  db: Database;
  challenge: EmailChallenge;
  submission: CodeSubmission;
  client: Partial<ClientDetails>;
  now: Date;
}

/** Writes of D1 for the right code of each kind. */
const COMPLETIONS: Record<ChallengeKind, ((solved: Solved) => Promise<void>) | null> = {
  sign_up: async ({ db, challenge: { signUp, address: email }, client, now }) => {
    if (signUp) await createAccount(db, { ...signUp, email }, client, now);
  },
  invitation: async ({ db, challenge: { id: invitationId, address: email }, submission, client, now }) => {
    const { name, passwordHash } = submission;
    if (name === undefined || passwordHash === undefined)
      throw new Error('no name or password for an account');
    await acceptInvitation(db, { invitationId, email, name, passwordHash }, client, now);
  },
  password_reset: async ({ db, challenge: { address }, submission: { passwordHash }, client, now }) => {
    if (passwordHash === undefined) throw new Error('no password to set');
    await resetPassword(db, address, passwordHash, client, now);
  },
  magic_link: null,
  second_factor: null,
};

/** Does what the right code of a challenge does, if anything. It may be repeated after a failure. */
export async function completeChallenge(
  { DB }: DatabaseBinding,
  challenge: EmailChallenge,
  submission: CodeSubmission,
  now: Date,
): Promise<void> {
  const { client = {} } = submission;
  await COMPLETIONS[challenge.kind]?.({ db: openDatabase(DB), challenge, submission, client, now });
}
