import { z } from 'zod';
import { jsonBody, operation, operations, response } from '../api/operation.ts';
import type { AppContext } from '../app-env.ts';
import { checkSecondFactor, skipSecondFactor } from '../sign-in/second-factor/second-factor-check.ts';
import { finishSetUp, startSetUp } from '../sign-in/second-factor/second-factor-enrolment.ts';
import { mailCode } from '../sign-in/second-factor/second-factor-mail.ts';
import { LoginResponse } from '../sign-in/sessions/login-response.ts';

const tags = ['Sign-in'];

const CodeBody = z
  .strictObject({
    code: z
      .string()
      .regex(/^\d{6}$/, 'Six digits')
      .meta({ description: 'Six digits.', example: '287082' }),
  })
  .meta({ id: 'SecondFactorCode', example: { code: '287082' } });

const SetUp = z
  .strictObject({
    secret: z.string().meta({
      description: 'Base32, for typing into an app.',
      example: 'GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ',
    }),
    totp_uri: z.string().meta({
      description: 'The same with all an app has to know, to be shown as a QR code.',
      example:
        'otpauth://totp/branchgate:ada%40example.com?issuer=branchgate&secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&algorithm=SHA1&digits=6&period=30',
    }),
    method: z.enum(['totp']),
  })
  .meta({ id: 'SecondFactorSetUp' });

const MailedCode = z
  .strictObject({ channel: z.enum(['email']), expires_at: z.iso.datetime() })
  .meta({ id: 'MailedSecondFactorCode' });

/** What a code, a secret or a token is in stays in no cache. */
function kept<T>(c: AppContext, body: T): T {
  c.header('Cache-Control', 'no-store');
  return body;
}

const router = operations();

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'setUpSecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/setup',
    summary: 'The secret for an app that makes codes',
    description:
      'The same each time with one pre-auth token. Nothing is enrolled until `verify-setup` has a code of it.',
    tags,
    responses: { 200: response('What the app needs.', SetUp) },
    failures: ['SECOND_FACTOR_ENROLLED'],
  }),
  async (c) => {
    const { secret, uri } = await startSetUp(c);
    return c.json(kept(c, { secret, totp_uri: uri, method: 'totp' as const }), 200);
  },
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'verifySecondFactorSetup',
    method: 'post',
    path: '/api/v1/auth/2fa/verify-setup',
    summary: 'Enrol the factor that a code is of, and sign in',
    description:
      'The code of the app enrols the method `totp`, the one that `2fa/email` mailed the method `email`. Five tries a pre-auth token.',
    tags,
    request: { body: jsonBody(CodeBody) },
    responses: { 200: response('Full tokens.', LoginResponse) },
    failures: ['SECOND_FACTOR_ENROLLED', 'CODE_WRONG', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => c.json(kept(c, await finishSetUp(c, c.req.valid('json').code)), 200),
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'verifySecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/verify-login',
    summary: 'Sign in with a code of the enrolled factor',
    description:
      'Codes of an app are taken one step of 30 seconds early or late, and none twice. Five tries a pre-auth token, also for the right code; 30 wrong ones an hour and user.',
    tags,
    request: { body: jsonBody(CodeBody) },
    responses: { 200: response('Full tokens.', LoginResponse) },
    failures: ['FORBIDDEN', 'CODE_WRONG', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => c.json(kept(c, await checkSecondFactor(c, c.req.valid('json').code)), 200),
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'skipSecondFactor',
    method: 'post',
    path: '/api/v1/auth/2fa/skip',
    summary: 'Sign in without enrolling a second factor',
    description: 'It is offered again at the next sign-in. Not where one is enrolled, or every user has to.',
    tags,
    responses: { 200: response('Full tokens.', LoginResponse) },
    failures: ['SECOND_FACTOR_REQUIRED', 'KEYS_UNAVAILABLE'],
  }),
  async (c) => c.json(kept(c, await skipSecondFactor(c)), 200),
);

router.openapi(
  operation({
    access: 'pre_auth',
    operationId: 'mailSecondFactorCode',
    method: 'post',
    path: '/api/v1/auth/2fa/email',
    summary: 'Mail a code, for `verify-setup` or `verify-login`',
    description:
      'For whoever enrols the method `email` or has enrolled it, and whose first factor was no mail. A new code replaces the last one.',
    tags,
    responses: { 202: response('The mail is on its way.', MailedCode) },
    failures: ['FORBIDDEN', 'SECOND_FACTOR_ENROLLED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const expiresAt = new Date(await mailCode(c)).toISOString();
    return c.json(kept(c, { channel: 'email' as const, expires_at: expiresAt }), 202);
  },
);

export const secondFactorRoutes = router;
