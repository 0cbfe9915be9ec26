import { z } from 'zod';
import { ApiError } from '../errors.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import type { Settings } from '../settings.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { startMagicLink, startSignUp, verifyEmailCode } from '../sign-in/email-code.ts';
import { LoginResponse, ResponseQuery } from '../sign-in/first-factor.ts';
import { logIn } from '../sign-in/password-login.ts';
import { deliverLogin } from './page-session.ts';
import { signInContextOf } from './sign-in-context.ts';
import {
  Challenge,
  EXAMPLE_ID,
  MailedCode,
  NewPassword,
  Password,
  PersonName,
  toChallengeResponse,
} from './sign-in-fields.ts';

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

/** Checked outside the schema, because the name of the service is a setting. @throws ApiError VALIDATION_FAILED */
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
    failures: ['CREDENTIALS_WRONG', 'CROSS_ORIGIN_REQUEST', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
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
      'Mails a code to the address. Submit the code to `magic-link/verify` to create the account. The response is the same if the address already has an account; its owner is then notified by mail.',
    tags,
    request: { body: jsonBody(SignUp) },
    responses: { 202: response('The mail will be sent.', SignedUp) },
    failures: ['MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { provider, ...request } = c.req.valid('json');
    const context = signInContextOf(c);
    checkProvider(context.settings, provider);
    const started = await startSignUp(context, request);
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
    failures: ['MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { email } = c.req.valid('json');
    const started = await startMagicLink(signInContextOf(c), email);
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
    failures: ['CODE_WRONG', 'CROSS_ORIGIN_REQUEST'],
  }),
  async (c) => {
    const { email, challenge_id: challengeId, code } = c.req.valid('json');
    const verify = () => verifyEmailCode(signInContextOf(c), { email, challengeId, code });
    return c.json(await deliverLogin(c, c.req.valid('query').response, verify), 200);
  },
);

export const accountSignInRoutes = router;
