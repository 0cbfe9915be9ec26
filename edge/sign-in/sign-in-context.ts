import type { ClientDetails } from '../audit/audit-event.ts';
import type { Database, DatabaseBinding } from '../database/database.ts';
import type { Limiters } from '../rate-limits/limiter-client.ts';
import type { Settings } from '../settings.ts';
import type { ChallengeObjects } from './challenge.ts';

/**
 * Parts of the request that sign-in needs.
 */
export interface SignInContext {
  env: DatabaseBinding & Limiters & ChallengeObjects;
  settings: Settings;
  db: Database;
  /** Named by audit rows and counted by rate limits. */
  client: ClientDetails;
  /** Lets work finish after the response has been sent. */
  waitUntil: (work: Promise<unknown>) => void;
  now: () => Date;
}

/** The result of a sign-in or a renewal: tokens of the gateway or of the provider. */
export interface Tokens {
  accessToken: string;
  refreshToken: string | null;
  accessExpiresAt: Date;
}
