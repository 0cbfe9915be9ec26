import type { Failure } from '../../shared/failures.ts';
import { fail, ok, type Result } from '../../shared/result.ts';
import { isPassword } from '../crypto/password-hash.ts';
import { accountByEmail, findAccount } from './accounts.ts';
import { completeFirstFactor, type LoginResponse, recordFailedSignIn } from './first-factor.ts';
import { withinPasswordAttempts } from './password-attempts.ts';
import type { Person } from './person.ts';
import { tokensForPassword } from './provider-tokens.ts';
import type { SignInContext } from './sign-in-context.ts';
import { requireOtherWays } from './sign-up.ts';

/**
 * Password login (specification 3.3).
 * @returns or SSO_REQUIRED, CREDENTIALS_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE
 */
export async function logIn(
  context: SignInContext,
  email: string,
  password: string,
): Promise<Result<LoginResponse, Failure>> {
  const other = await requireOtherWays(context, email);
  if (!other.ok) return other;
  const person = await withinPasswordAttempts(context, email, () => authenticate(context, email, password));
  if (!person.ok) return person;
  if (person.value) return completeFirstFactor(context, person.value, 'password');
  const identify = () => findAccount(context.db, email);
  recordFailedSignIn(context, identify, { first_factor: 'password' });
  return fail({ code: 'CREDENTIALS_WRONG' });
}

/** The password of an account is never sent to the provider. */
async function authenticate(
  context: SignInContext,
  email: string,
  password: string,
): Promise<Result<Person | null, Failure>> {
  const [account] = await accountByEmail(context.db, email);
  const isRight = await isPassword(password, account?.passwordHash ?? null, context.settings.PASSWORD_COST);
  if (!isRight.ok) return isRight;
  if (account) return ok(isRight.value ? { account } : null);
  if (!context.settings.IDP_PASSWORD_GRANT) return ok(null);
  const tokens = await tokensForPassword(context, email, password);
  return tokens.ok ? ok(tokens.value && { tokens: tokens.value }) : tokens;
}
