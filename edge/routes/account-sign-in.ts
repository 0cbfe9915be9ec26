import { z } from 'zod';
import { jsonBody, operation, operations, response } from '../api/operation.ts';
import type { AppContext } from '../app-env.ts';
import { ApiError } from '../errors.ts';
import { readSettings } from '../settings.ts';
import { EmailAddress } from '../sign-in/accounts/accounts.ts';
import { logIn } from '../sign-in/accounts/password-login.ts';
import { CODE_DIGITS } from '../sign-in/email-codes/challenge.ts';
import {
  type StartedChallenge,
  startMagicLink,
  startSignUp,
  verifyEmailCode,
} from '../sign-in/email-codes/email-code.ts';
import { LoginResponse } from '../sign-in/sessions/login-response.ts';

const tags = ['Sign-in'];
const PASSWORD_MAX = 256;

const Provider = z.string().max(64).optional().meta({
  description:
    '`base`, `base_idp`, or the name of the service (`branchgate`) alone or with `_idp`, in any case. All name the same.',
  example: 'branchgate',
});

const Login = z
  .strictObject({
    email: EmailAddress,
    password: z.string().normalize('NFC').min(1).max(PASSWORD_MAX).meta({ example: 'correct horse battery' }),
    provider: Provider,
  })
  .meta({ example: { email: 'ada@example.com', password: 'correct horse battery' } });

const SignUp = z
  .strictObject({
    name: z.string().trim().min(1).max(100).meta({ example: 'Ada Lovelace' }),
    email: EmailAddress,
    password: z.string().normalize('NFC').min(8).max(PASSWORD_MAX).meta({ example: 'correct horse battery' }),
    provider: Provider,
  })
  .meta({ example: { name: 'Ada Lovelace', email: 'ada@example.com', password: 'correct horse battery' } });

const MagicLink = z.strictObject({ email: EmailAddress }).meta({ example: { email: 'ada@example.com' } });

const EmailCode = z
  .strictObject({
    email: EmailAddress,
    challenge_id: z.uuid(),
    code: z
      .string()
      .regex(new RegExp(`^[0-9]{${CODE_DIGITS}}$`))
      .meta({ example: '482910' }),
  })
  .meta({
    example: {
      email: 'ada@example.com',
      challenge_id: '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11',
      code: '482910',
    },
  });

const Challenge = z.strictObject({
  challenge_id: z.uuid(),
  channel: z.enum(['email']),
  expires_at: z.iso.datetime().meta({ description: 'If the mail is late, the code holds longer.' }),
});

const SignedUp = z.strictObject({
  email: z.string(),
  message: z.string(),
  verification: Challenge,
  requires_2fa: z.boolean(),
  requires_2fa_setup: z.boolean(),
  method: z.enum(['email_otp']),
});

const challengeRecord = ({ challengeId, expiresAt }: StartedChallenge) => ({
  challenge_id: challengeId,
  channel: 'email' as const,
  expires_at: new Date(expiresAt).toISOString(),
});

/** The name of the service is a setting, so no schema can know it. @throws ApiError VALIDATION_FAILED */
function checkProvider(c: AppContext, provider: string | undefined): void {
  const { SERVICE_NAME } = readSettings(c.env);
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
      'Answers with tokens, or with a pre-auth token for the second factor. Wrong passwords are limited to 30 an hour and e-mail address, and to 100 from one client address.',
    tags,
    request: { body: jsonBody(Login) },
    responses: { 200: response('Tokens, or what is due before there are any.', LoginResponse) },
    failures: ['CREDENTIALS_WRONG', 'IDP_UNAVAILABLE', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => {
    const { email, password, provider } = c.req.valid('json');
    checkProvider(c, provider);
    c.header('Cache-Control', 'no-store');
    return c.json(await logIn(c, email, password), 200);
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
      'Mails a code to the address; bring it to `magic-link/verify` and the account is made. The answer is the same for an address that has an account: its owner is mailed that.',
    tags,
    request: { body: jsonBody(SignUp) },
    responses: { 202: response('A code is on its way.', SignedUp) },
    failures: ['MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { provider, ...order } = c.req.valid('json');
    checkProvider(c, provider);
    const started = await startSignUp(c, order);
    c.header('Cache-Control', 'no-store');
    return c.json(
      {
        email: order.email,
        message: 'We have sent you a mail. Bring its code to magic-link/verify, and the account is made.',
        verification: challengeRecord(started),
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
    summary: 'Ask for a code by e-mail to sign in with',
    description: 'The answer is the same for an address without an account, which is mailed nothing.',
    tags,
    request: { body: jsonBody(MagicLink) },
    responses: { 202: response('A code is on its way, if there is such an account.', Challenge) },
    failures: ['MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const { email } = c.req.valid('json');
    const started = await startMagicLink(c, email);
    c.header('Cache-Control', 'no-store');
    return c.json(challengeRecord(started), 202);
  },
);

router.openapi(
  operation({
    access: 'public',
    operationId: 'verifyMagicLink',
    method: 'post',
    path: '/api/v1/auth/magic-link/verify',
    summary: 'Sign in with a code that came by e-mail',
    description:
      'Takes the code of a sign-up too, which makes the account. A code works once and for 10 minutes; a challenge takes 5 codes, an address 20 wrong ones an hour, a client address 100.',
    tags,
    request: { body: jsonBody(EmailCode) },
    responses: { 200: response('Tokens, or what is due before there are any.', LoginResponse) },
    failures: ['CODE_WRONG'],
  }),
  async (c) => {
    const { email, challenge_id: challengeId, code } = c.req.valid('json');
    c.header('Cache-Control', 'no-store');
    return c.json(await verifyEmailCode(c, { email, challengeId, code }), 200);
  },
);

export const accountSignInRoutes = router;
