import type { ClientDetails } from '../audit/actor.ts';
import type { Database } from '../database/database.ts';
import type { Env } from '../env.ts';
import type { Settings } from '../settings.ts';

/**
 * What sign-in needs from the request that it serves.
 *
 * Failures below this folder: an expected refusal is a thrown `ApiError`, which the route renders. The `Challenges`
 * object returns a `Result` instead, because an error that crosses an object loses its class.
 */
export interface SignInContext {
  env: Env;
  settings: Settings;
  db: Database;
  /** Named by audit rows and counted by rate limits. */
  client: ClientDetails;
  /** Lets work finish after the response has been sent. */
  waitUntil: (work: Promise<unknown>) => void;
  now: () => Date;
}
