import { type AppContext, clientOf } from '../pipeline/context.ts';
import { databaseOf } from '../pipeline/replica-choice.ts';
import { readSettings } from '../settings.ts';
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
