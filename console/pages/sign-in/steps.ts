import type { Schemas } from '../../../client/client.ts';
import { dataOf } from '../../../client/response-error.ts';
import { api } from '../../data/gateway.ts';

export type Login = Schemas['LoginResponse'];

/** The ways to sign in that the gateway offers to an address, or to everyone. */
export type Methods = Schemas['SignInMethods'];

/** An address, and the ways that it has. */
interface Identified {
  email: string;
  methods: Methods;
}

/**
 * Where a sign-in is. `email` to `invitation` are ways to begin; the rest follows from what the gateway
 * responds.
 */
export type Step =
  | { name: 'email' | 'sign_up' | 'invitation' }
  | { name: 'mail' | 'reset_start'; email?: string }
  | ({ name: 'password' | 'company' | 'owner_code' } & Identified)
  | { name: 'code'; email: string; challengeId: string }
  | { name: 'reset'; email: string; challengeId: string }
  | { name: 'set_up'; preAuth: string }
  | { name: 'second_factor'; preAuth: string; method: 'totp' | 'email' }
  | { name: 'recover'; preAuth: string; method: 'totp' | 'email' }
  | { name: 'recovery_codes'; codes: string[] }
  | { name: 'done' };

export type StepName = Step['name'];

/** The heading of each step. */
export const TITLES: Record<StepName, string> = {
  email: 'Sign in',
  password: 'Sign in',
  company: 'Sign in with your company',
  owner_code: 'Use the recovery code of the owners',
  mail: 'Sign in with a mailed code',
  sign_up: 'Create an account',
  reset_start: 'Reset your password',
  invitation: 'Accept an invitation',
  code: 'Enter the mailed code',
  reset: 'Set a new password',
  set_up: 'Protect your account',
  second_factor: 'Second factor',
  recover: 'Use a recovery code',
  recovery_codes: 'Store your recovery codes',
  done: 'Signing in',
};

/** What follows the first factor, or a second one. */
export function nextStep(login: Login): Step {
  const { pre_auth_token: preAuth } = login;
  if (preAuth === null) return { name: 'done' };
  if (login.requires_2fa) return { name: 'second_factor', preAuth, method: login.method ?? 'totp' };
  return { name: 'set_up', preAuth };
}

/** The gateway sets the cookie of a session instead of returning tokens. */
const params = { query: { response: 'page' } } as const;
const bearer = (preAuth: string) => ({ Authorization: `Bearer ${preAuth}` });

/** The address of the sign-in at the provider of a company. */
export function companyAddress(
  { methods, email }: Identified,
  { returnTo, cli }: { returnTo: string; cli: string | undefined },
): string {
  const more = { return_to: returnTo, response: 'page', login_hint: email, ...(cli && { cli }) };
  return `${methods.sso?.start_url}?${new URLSearchParams(more)}`;
}

/** What follows the address: the provider of a company, if it is the only way. */
export const stepFor = (email: string, methods: Methods): Step => ({
  name: methods.methods.includes('password') ? 'password' : 'company',
  email,
  methods,
});

export const signIn = {
  methods: (email?: string) => dataOf(api.POST('/api/v1/auth/methods', { body: email ? { email } : {} })),
  ownerCode: (email: string, code: string) =>
    dataOf(api.POST('/api/v1/auth/sso/recover', { params, body: { email, code } })),
  password: (email: string, password: string) =>
    dataOf(api.POST('/api/v1/auth/login', { params, body: { email, password } })),
  startMail: (email: string) => dataOf(api.POST('/api/v1/auth/magic-link/start', { body: { email } })),
  code: (email: string, challenge_id: string, code: string) =>
    dataOf(api.POST('/api/v1/auth/magic-link/verify', { params, body: { email, challenge_id, code } })),
  signUp: (name: string, email: string, password: string) =>
    dataOf(api.POST('/api/v1/auth/signup', { body: { name, email, password } })),
  startReset: (email: string) => dataOf(api.POST('/api/v1/auth/password/reset/start', { body: { email } })),
  reset: (body: { email: string; challenge_id: string; code: string; new_password: string }) =>
    dataOf(api.POST('/api/v1/auth/password/reset', { body })),
  accept: (body: { email: string; invitation_id: string; code: string; name: string; password: string }) =>
    dataOf(api.POST('/api/v1/auth/invitations/accept', { params, body })),
  secret: (preAuth: string) => dataOf(api.POST('/api/v1/auth/2fa/setup', { headers: bearer(preAuth) })),
  mailCode: (preAuth: string) => dataOf(api.POST('/api/v1/auth/2fa/email', { headers: bearer(preAuth) })),
  skip: (preAuth: string) => dataOf(api.POST('/api/v1/auth/2fa/skip', { params, headers: bearer(preAuth) })),
  enrol: (preAuth: string, code: string) =>
    dataOf(api.POST('/api/v1/auth/2fa/verify-setup', { params, headers: bearer(preAuth), body: { code } })),
  verify: (preAuth: string, code: string) =>
    dataOf(api.POST('/api/v1/auth/2fa/verify-login', { params, headers: bearer(preAuth), body: { code } })),
  replaceCodes: (preAuth: string, code: string) =>
    dataOf(api.POST('/api/v1/auth/2fa/recovery-codes', { params, headers: bearer(preAuth), body: { code } })),
  recover: (preAuth: string, code: string, remove_factor: boolean) =>
    dataOf(
      api.POST('/api/v1/auth/2fa/recover', {
        params,
        headers: bearer(preAuth),
        body: { code, remove_factor },
      }),
    ),
};
