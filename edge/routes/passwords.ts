import { z } from 'zod';
import { emptyResponse, jsonBody, operation, operations, response } from '../pipeline/operation.ts';
import { EmailAddress } from '../sign-in/accounts.ts';
import { finishPasswordReset, startPasswordReset } from '../sign-in/email-code.ts';
import { changePassword } from '../sign-in/set-password.ts';
import { signInContextOf } from './sign-in-context.ts';
import {
  Challenge,
  EXAMPLE_ID,
  MailedCode,
  NewPassword,
  Password,
  toChallengeResponse,
} from './sign-in-fields.ts';

const tags = ['Sign-in'];

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

const router = operations();

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
    await changePassword(signInContextOf(c), c.var.principal ?? null, { current, next });
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
    failures: ['MAIL_UNAVAILABLE'],
  }),
  async (c) => {
    const started = await startPasswordReset(signInContextOf(c), c.req.valid('json').email);
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
    failures: ['CODE_WRONG'],
  }),
  async (c) => {
    const { email, challenge_id: challengeId, code, new_password } = c.req.valid('json');
    await finishPasswordReset(signInContextOf(c), { email, challengeId, code }, new_password);
    return c.body(null, 204);
  },
);

export const passwordRoutes = router;
