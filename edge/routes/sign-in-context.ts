import { z } from 'zod';
import { type AppContext, clientOf } from '../pipeline/context.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
import { CODE_DIGITS } from '../sign-in/challenge.ts';
import type { StartedChallenge } from '../sign-in/email-code.ts';
import type { SignInContext } from '../sign-in/sign-in-context.ts';

/** Takes from a request what sign-in needs. */
export const signInContextOf = (c: AppContext): SignInContext => ({
  env: c.env,
  settings: readSettings(c.env),
  db: databaseOf(c),
  client: clientOf(c),
  waitUntil: (work) => c.executionCtx.waitUntil(work),
  now: () => new Date(),
});

/** Fields that several operations of sign-in have. */
const PASSWORD_MAX = 256;
export const Password = z
  .string()
  .normalize('NFC')
  .min(1)
  .max(PASSWORD_MAX)
  .meta({ example: 'correct horse battery' });
export const NewPassword = z
  .string()
  .normalize('NFC')
  .min(8)
  .max(PASSWORD_MAX)
  .meta({ example: 'correct horse battery' });
export const PersonName = z.string().trim().min(1).max(100).meta({ example: 'Ada Lovelace' });
export const MailedCode = z
  .string()
  .regex(new RegExp(`^[0-9]{${CODE_DIGITS}}$`))
  .meta({ example: '482910' });

export const EXAMPLE_ID = '0b9f3f1e-5a52-4f6a-8f6e-0f6f5d9b7a11';

export const Challenge = z.strictObject({
  challenge_id: z.uuid(),
  channel: z.enum(['email']),
  expires_at: z.iso.datetime().meta({ description: 'Later, if the mail is delayed.' }),
});

export const toChallengeResponse = ({ challengeId, expiresAt }: StartedChallenge) => ({
  challenge_id: challengeId,
  channel: 'email' as const,
  expires_at: new Date(expiresAt).toISOString(),
});
