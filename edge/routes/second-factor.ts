import { z } from 'zod';
import type { AppContext } from '../pipeline/context.ts';
import { jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { LoginResponse, LoginWithRecoveryCodes, ResponseQuery } from '../sign-in/first-factor.ts';
import { recover, replaceRecoveryCodes } from '../sign-in/recovery.ts';
import { RECOVERY_CODE, type SecondFactorContext } from '../sign-in/second-factor.ts';
import { checkSecondFactor, skipSecondFactor } from '../sign-in/second-factor-check.ts';
import { finishSetUp, mailCode, startSetUp } from '../sign-in/second-factor-enrolment.ts';
import { deliverLogin } from './page-session.ts';
import { signInContextOf } from './sign-in-context.ts';

const tags = ['Sign-in'];

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

const MailedCode = z
  .strictObject({ channel: z.enum(['email']), expires_at: z.iso.datetime() })
  .meta({ id: 'MailedSecondFactorCode' });

const contextOf = (c: AppContext): SecondFactorContext => ({
  ...signInContextOf(c),
  preAuth: c.var.preAuth,
});

const router = operations();

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
    const { secret, uri } = await startSetUp(contextOf(c));
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
    const finish = async () => {
      const { login, recoveryCodes } = await finishSetUp(contextOf(c), c.req.valid('json').code);
      return { ...login, recovery_codes: recoveryCodes };
    };
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
    const replace = async () => {
      const { login, recoveryCodes } = await replaceRecoveryCodes(contextOf(c), c.req.valid('json').code);
      return { ...login, recovery_codes: recoveryCodes };
    };
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
    responses: { 202: response('The mail will be sent.', MailedCode) },
    failures: ['FORBIDDEN', 'SECOND_FACTOR_ENROLLED', 'MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const expiresAt = new Date(await mailCode(contextOf(c))).toISOString();
    return c.json({ channel: 'email' as const, expires_at: expiresAt }, 202);
  },
);

export const secondFactorRoutes = router;
