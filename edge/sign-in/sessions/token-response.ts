import { z } from 'zod';
import type { Tokens } from './sessions.ts';

/** The fields of every response that contains tokens (RFC 6749 section 5.1). */
export const TOKEN_FIELDS = {
  access_token: z.string(),
  refresh_token: z.string().nullable().meta({ description: 'Null when the provider issues none.' }),
  token_type: z.enum(['bearer']),
  expires_in: z.int().min(0).meta({ description: 'Seconds until the access token expires.', example: 3600 }),
};

export const tokenFields = ({ accessToken, refreshToken, accessExpiresAt }: Tokens) => ({
  access_token: accessToken,
  refresh_token: refreshToken,
  token_type: 'bearer' as const,
  expires_in: Math.max(0, Math.floor((accessExpiresAt.getTime() - Date.now()) / 1000)),
});
