import { z } from 'zod';
import { SECOND_FACTOR_METHODS } from '../second-factor/second-factor-method.ts';

const Token = z.string().nullable();

export const SignedInUser = z.strictObject({
  id: z.uuid(),
  email: z.string().meta({ example: 'ada@example.com' }),
  role: z.string().meta({ example: 'owner' }),
});

/** Specification 4.2. */
export const LoginResponse = z
  .strictObject({
    access_token: Token,
    refresh_token: Token,
    pre_auth_token: Token.meta({
      description:
        'The bearer token for the second step, if one is required. It expires after 5 minutes, for an enrolment after 60.',
    }),
    requires_2fa: z.boolean().meta({ description: 'Whether a code of the second factor is required.' }),
    requires_2fa_setup: z
      .boolean()
      .meta({ description: 'Whether a second factor must be enrolled or skipped.' }),
    method: z.enum(SECOND_FACTOR_METHODS).nullable(),
    user: z.union([SignedInUser, z.null()]),
  })
  .meta({ id: 'LoginResponse' });
/** A sign-in that made recovery codes, which are in no other response. */
export const LoginWithRecoveryCodes = LoginResponse.extend({
  recovery_codes: z.array(z.string()).meta({
    description:
      'Each signs in once in place of the second factor (`2fa/recover`). Earlier codes are no longer valid. They are not shown again.',
    example: ['k3ud-7xqa-m2pz-w5tc'],
  }),
}).meta({ id: 'LoginWithRecoveryCodes' });

export type LoginResponse = z.output<typeof LoginResponse>;
