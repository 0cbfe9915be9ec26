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
export type LoginResponse = z.output<typeof LoginResponse>;
