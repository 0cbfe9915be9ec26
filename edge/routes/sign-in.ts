import { z } from 'zod';
import { ApiError, unwrap } from '../errors.ts';
import type { AppContext } from '../pipeline/context.ts';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import type { Settings } from '../settings.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import {
  finishPasswordReset,
  startMagicLink,
  startPasswordReset,
  startSignUp,
  verifyEmailCode,
} from '../sign-in/email-code.ts';
import { LoginResponse, LoginWithRecoveryCodes, ResponseQuery } from '../sign-in/first-factor.ts';
import { logIn } from '../sign-in/password-login.ts';
import { recover, replaceRecoveryCodes } from '../sign-in/recovery.ts';
import { RECOVERY_CODE, type SecondFactorContext } from '../sign-in/second-factor.ts';
import { checkSecondFactor, skipSecondFactor } from '../sign-in/second-factor-check.ts';
import { finishSetUp, mailCode, startSetUp } from '../sign-in/second-factor-enrolment.ts';
import { changePassword } from '../sign-in/set-password.ts';
import { deliverLogin } from './sessions.ts';
import {
  Challenge,
  EXAMPLE_ID,
  MailedCode,
  NewPassword,
  Password,
  PersonName,
  signInContextOf,
  toChallengeResponse,
} from './sign-in-context.ts';

const tags = ['Sign-in'];

const Provider = z.string().max(64).optional().meta({
  description:
    '`base`, `base_idp`, or the name of the service (`branchgate`), alone or with `_idp`, in any case. All values have the same meaning.',
  example: 'branchgate',
});

const Login = z
  .strictObject({
    email: EmailAddress,
    password: Password,
    provider: Provider,
  })
  .meta({ example: { email: 'ada@example.com', password: 'correct horse battery' } });

const SignUp = z
  .strictObject({
    name: PersonName,
    email: EmailAddress,
    password: NewPassword,
    provider: Provider,
  })
  .meta({ example: { name: 'Ada Lovelace', email: 'ada@example.com', password: 'correct horse battery' } });

const MagicLink = z.strictObject({ email: EmailAddress }).meta({ example: { email: 'ada@example.com' } });

const EmailCode = z
  .strictObject({
    email: EmailAddress,
    challenge_id: z.uuid(),
    code: MailedCode,
  })
  .meta({
    example: {
      email: 'ada@example.com',
      challenge_id: EXAMPLE_ID,
      code: '482910',
    },
  });

const SignedUp = z.strictObject({
  email: z.string(),
  message: z.string(),
  verification: Challenge,
  requires_2fa: z.boolean(),
  requires_2fa_setup: z.boolean(),
  method: z.enum(['email_otp']),
});

/**
 * Checked outside the schema, because the name of the service is a setting.
 * @throws ApiError VALIDATION_FAILED
 */
function checkProvider({ SERVICE_NAME }: Settings, provider: string | undefined): void {
  const known = ['base', SERVICE_NAME].flatMap((name) => [name, `${name}_idp`]);
  if (provider === undefined || known.includes(provider.toLowerCase())) return;
  const details = [{ path: 'provider', message: `Expected one of ${known.join(', ')}` }];
  throw new ApiError('VALIDATION_FAILED', { details });
}

const router = operations();

router.openapi(
  operation({
    access: 'public',
    operationId: 'logIn',
    method: 'post',
    path: '/api/v1/auth/login',
    summary: 'Sign in with a password',
    description:
      'Returns tokens, or a pre-auth token if a second factor is required. Wrong passwords are limited to 30 per hour for an e-mail address and to 100 per hour from a client address.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(Login) },
    responses: { 200: response('Tokens, or a pre-auth token for the next step.', LoginResponse) },
    failures: [
      'SSO_REQUIRED',
      'CREDENTIALS_WRONG',
      'CROSS_ORIGIN_REQUEST',
      'IDP_UNAVAILABLE',
      'KEYS_UNAVAILABLE',
    ],
  }),
  async (c) => {
    const { email, password, provider } = c.req.valid('json');
    const context = signInContextOf(c);
    checkProvider(context.settings, provider);
    const { response: form } = c.req.valid('query');
    return c.json(await deliverLogin(c, form, () => logIn(context, email, password)), 200);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'signUp',
    method: 'post',
    path: '/api/v1/auth/signup',
    summary: 'Sign up for an account',
    description:
      'Mails a code to the address. Submit the code to `magic-link/verify` to create the account. The response is the same if the address already has an account; its owner is then notified by mail. Limited to 10 a day for a mailbox.',
    tags,
    request: { body: jsonBody(SignUp) },
    responses: { 202: response('The mail will be sent.', SignedUp) },
    failures: ['SSO_REQUIRED', 'SIGN_UP_CLOSED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { provider, ...request } = c.req.valid('json');
    const context = signInContextOf(c);
    checkProvider(context.settings, provider);
    const started = unwrap(await startSignUp(context, request));
    return c.json(
      {
        email: request.email,
        message:
          'A mail was sent to this address. Submit the code to magic-link/verify to create the account.',
        verification: toChallengeResponse(started),
        requires_2fa: false,
        requires_2fa_setup: false,
        method: 'email_otp' as const,
      },
      202,
    );
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'startMagicLink',
    method: 'post',
    path: '/api/v1/auth/magic-link/start',
    summary: 'Request a sign-in code by e-mail',
    description: 'The response is the same for an address without an account, which gets no mail.',
    tags,
    request: { body: jsonBody(MagicLink) },
    responses: { 202: response('The mail will be sent if the address has an account.', Challenge) },
    failures: ['SSO_REQUIRED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { email } = c.req.valid('json');
    const started = unwrap(await startMagicLink(signInContextOf(c), email));
    return c.json(toChallengeResponse(started), 202);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'verifyMagicLink',
    method: 'post',
    path: '/api/v1/auth/magic-link/verify',
    summary: 'Sign in with a mailed code',
    description:
      'Accepts the code of a magic link, or of a sign-up, whose account it creates. A code is valid once and for 10 minutes. A challenge accepts 5 attempts. Wrong codes are limited to 20 per hour for an e-mail address and to 100 per hour from a client address.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(EmailCode) },
    responses: { 200: response('Tokens, or a pre-auth token for the next step.', LoginResponse) },
    failures: ['SSO_REQUIRED', 'CODE_WRONG', 'CROSS_ORIGIN_REQUEST'],
  }),
  async (c) => {
    const { email, challenge_id: challengeId, code } = c.req.valid('json');
    const verify = () => verifyEmailCode(signInContextOf(c), { email, challengeId, code });
    return c.json(await deliverLogin(c, c.req.valid('query').response, verify), 200);
  },
);

const PasswordChange = z
  .strictObject({ current_password: Password, new_password: NewPassword })
  .meta({ example: { current_password: 'correct horse battery', new_password: 'staple a new battery' } });

const ResetStart = z.strictObject({ email: EmailAddress }).meta({ example: { email: 'ada@example.com' } });

const Reset = z
  .strictObject({ email: EmailAddress, challenge_id: z.uuid(), code: MailedCode, new_password: NewPassword })
  .meta({
    example: {
      email: 'ada@example.com',
      challenge_id: EXAMPLE_ID,
      code: '482910',
      new_password: 'staple a new battery',
    },
  });

router.openapi(
  operation({
    access: 'signed_in',
    machines: 'none',
    operationId: 'changePassword',
    method: 'post',
    path: '/api/v1/auth/password',
    summary: 'Change the password of your account',
    description:
      'Ends all other sessions of the account. Wrong passwords count against the same limits as those of a login.',
    tags,
    request: { body: jsonBody(PasswordChange) },
    responses: { 204: emptyResponse('The password is changed.') },
    failures: ['PASSWORD_WRONG', 'MANAGED_BY_PROVIDER'],
  }),
  async (c) => {
    const { current_password: current, new_password: next } = c.req.valid('json');
    unwrap(await changePassword(signInContextOf(c), c.var.principal ?? null, { current, next }));
    return c.body(null, 204);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'startPasswordReset',
    method: 'post',
    path: '/api/v1/auth/password/reset/start',
    summary: 'Request a code for a new password by e-mail',
    description: 'The response is the same for an address without an account, which gets no mail.',
    tags,
    request: { body: jsonBody(ResetStart) },
    responses: { 202: response('The mail will be sent if the address has an account.', Challenge) },
    failures: ['SSO_REQUIRED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const started = unwrap(await startPasswordReset(signInContextOf(c), c.req.valid('json').email));
    return c.json(toChallengeResponse(started), 202);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'resetPassword',
    method: 'post',
    path: '/api/v1/auth/password/reset',
    summary: 'Set a new password with a mailed code',
    description:
      'Ends all sessions of the account. It does not sign in, and a second factor stays enrolled. A code is valid once and for 10 minutes, and its attempts have the limits of `magic-link/verify`.',
    tags,
    request: { body: jsonBody(Reset) },
    responses: { 204: emptyResponse('The password is set. Sign in with it.') },
    failures: ['SSO_REQUIRED', 'CODE_WRONG'],
  }),
  async (c) => {
    const { email, challenge_id: challengeId, code, new_password } = c.req.valid('json');
    unwrap(await finishPasswordReset(signInContextOf(c), { email, challengeId, code }, new_password));
    return c.body(null, 204);
  },
);

const CodeBody = z
  .strictObject({
    code: z
      .string()
      .regex(/^\d{6}$/, 'Expected six digits')
      .meta({ description: 'Six digits.', example: '287082' }),
  })
  .meta({ id: 'SecondFactorCode', example: { code: '287082' } });

const RecoveryBody = z
  .strictObject({
    code: z.string().max(64).regex(RECOVERY_CODE, 'Expected 16 letters and digits').meta({
      description: 'A recovery code, in upper or lower case, with or without separators.',
      example: 'k3ud-7xqa-m2pz-w5tc',
    }),
    remove_factor: z.boolean().default(false).meta({
      description:
        'Whether the factor is lost. It is then removed with all recovery codes, and the next sign-in with a password offers or demands the set-up of another one.',
    }),
  })
  .meta({ example: { code: 'k3ud-7xqa-m2pz-w5tc', remove_factor: true } });

const SetUp = z
  .strictObject({
    secret: z.string().meta({
      description: 'Base32, to be entered in an app.',
      example: 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ',
    }),
    totp_uri: z.string().meta({
      description: 'The secret with all its parameters, to be displayed as a QR code.',
      example:
        'otpauth://totp/branchgate:ada%40example.com?issuer=branchgate&secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&algorithm=SHA1&digits=6&period=30',
    }),
    method: z.enum(['totp']),
  })
  .meta({ id: 'SecondFactorSetUp' });

const MailedCodeBody = z
  .strictObject({ channel: z.enum(['email']), expires_at: z.iso.datetime() })
  .meta({ id: 'MailedSecondFactorCode' });

const contextOf = (c: AppContext): SecondFactorContext => ({
  ...signInContextOf(c),
  preAuth: c.var.preAuth,
});

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'setUpSecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/setup',
    summary: 'Get the secret for an authenticator app',
    description:
      'Returns the same secret for each call with one pre-auth token. Nothing is enrolled until a code is submitted to `verify-setup`.',
    tags,
    responses: { 200: response('The secret for the app.', SetUp) },
    failures: ['SECOND_FACTOR_ENROLLED'],
  }),
  async (c) => {
    const { secret, uri } = unwrap(await startSetUp(contextOf(c)));
    return c.json({ secret, totp_uri: uri, method: 'totp' as const }, 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'verifySecondFactorSetup',
    method: 'post',
    path: '/api/v1/auth/2fa/verify-setup',
    summary: 'Enrol a second factor with its first code and sign in',
    description:
      'A code of the app enrols the method `totp`; a code mailed by `2fa/email` enrols the method `email`. A pre-auth token allows five attempts. The response has ten recovery codes, each of which signs in once if the factor is lost.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(CodeBody) },
    responses: { 200: response('The tokens, and the recovery codes.', LoginWithRecoveryCodes) },
    failures: ['SECOND_FACTOR_ENROLLED', 'CODE_WRONG', 'CROSS_ORIGIN_REQUEST', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const finish = () => finishSetUp(contextOf(c), c.req.valid('json').code);
    return c.json(await deliverLogin(c, c.req.valid('query').response, finish), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'verifySecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/verify-login',
    summary: 'Sign in with a code of the enrolled factor',
    description:
      'Codes of an app are accepted up to 30 seconds early or late, and once. A pre-auth token allows five attempts, whether right or wrong. Wrong codes are limited to 30 per hour for a user.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(CodeBody) },
    responses: { 200: response('The tokens.', LoginResponse) },
    failures: ['FORBIDDEN', 'CODE_WRONG', 'CROSS_ORIGIN_REQUEST', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const check = () => checkSecondFactor(contextOf(c), c.req.valid('json').code);
    return c.json(await deliverLogin(c, c.req.valid('query').response, check), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'replaceRecoveryCodes',
    method: 'post',
    path: '/api/v1/auth/2fa/recovery-codes',
    summary: 'Sign in with a code of the enrolled factor, and get new recovery codes',
    description: 'As `verify-login`. The new recovery codes replace the earlier ones.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(CodeBody) },
    responses: { 200: response('The tokens, and the recovery codes.', LoginWithRecoveryCodes) },
    failures: ['FORBIDDEN', 'CODE_WRONG', 'CROSS_ORIGIN_REQUEST', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const replace = () => replaceRecoveryCodes(contextOf(c), c.req.valid('json').code);
    return c.json(await deliverLogin(c, c.req.valid('query').response, replace), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'recoverSecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/recover',
    summary: 'Sign in with a recovery code in place of the enrolled factor',
    description: 'A recovery code is valid once. Attempts have the limits of `verify-login`.',
    tags,
    request: { query: ResponseQuery, body: jsonBody(RecoveryBody) },
    responses: { 200: response('The tokens.', LoginResponse) },
    failures: ['FORBIDDEN', 'CODE_WRONG', 'CROSS_ORIGIN_REQUEST', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const { code, remove_factor } = c.req.valid('json');
    const login = () => recover(contextOf(c), code, remove_factor);
    return c.json(await deliverLogin(c, c.req.valid('query').response, login), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'skipSecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/skip',
    summary: 'Sign in without enrolling a second factor',
    description:
      'The enrolment is offered again at the next sign-in. It cannot be skipped if a factor is enrolled or if the gateway requires one.',
    tags,
    request: { query: ResponseQuery },
    responses: { 200: response('The tokens.', LoginResponse) },
    failures: ['SECOND_FACTOR_REQUIRED', 'CROSS_ORIGIN_REQUEST', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const skip = () => skipSecondFactor(contextOf(c));
    return c.json(await deliverLogin(c, c.req.valid('query').response, skip), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'mailSecondFactorCode',
    method: 'post',
    path: '/api/v1/auth/2fa/email',
    summary: 'Mail a code for `verify-setup` or `verify-login`',
    description:
      'For users who enrol the method `email` or have enrolled it, unless their first factor was a mailed code. A new code replaces the previous one.',
    tags,
    responses: { 202: response('The mail will be sent.', MailedCodeBody) },
    failures: ['FORBIDDEN', 'SECOND_FACTOR_ENROLLED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const expiresAt = new Date(unwrap(await mailCode(contextOf(c)))).toISOString();
    return c.json({ channel: 'email' as const, expires_at: expiresAt }, 202);
  },
);

export const signInRoutes = router;
