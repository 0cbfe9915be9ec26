import { ApiError } from '../../errors.ts';
import { tokensForPassword } from '../provider/identity-provider.ts';
import { recordFailedSignIn } from '../sessions/failed-sign-in.ts';
import { completeFirstFactor } from '../sessions/first-factor.ts';
import type { LoginResponse } from '../sessions/login-response.ts';
import type { Person } from '../sessions/person.ts';
import type { SignInContext } from '../sign-in-context.ts';
import { accountByEmail } from './accounts.ts';
import { withinPasswordAttempts } from './password-attempts.ts';
import { isPassword } from './password-hash.ts';

/**
 * Password login (specification 3.3).
 * @throws ApiError CREDENTIALS_WRONG, RATE_LIMITED, LIMITER_UNAVAILABLE, IDP_UNAVAILABLE
 */
export async function logIn(context: SignInContext, email: string, password: string): Promise<LoginResponse> {
  const person = await withinPasswordAttempts(context, email, () => authenticate(context, email, password));
  if (!person) {
    const identify = async () => (await accountByEmail(context.db, email))[0];
    recordFailedSignIn(context, identify, { first_factor: 'password' });
    throw new ApiError('CREDENTIALS_WRONG');
  }
  return completeFirstFactor(context, person, 'password');
}

/** The password of an account is never sent to the provider. */
async function authenticate(context: SignInContext, email: string, password: string): Promise<Person | null> {
  const [account] = await accountByEmail(context.db, email);
  const isRight = await isPassword(password, account?.passwordHash ?? null, context.settings.PASSWORD_COST);
  if (account) return isRight ? { account } : null;
  if (!context.settings.IDP_PASSWORD_GRANT) return null;
  const tokens = await tokensForPassword(context, email, password);
  return tokens && { tokens };
}
