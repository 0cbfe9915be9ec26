import { and, eq } from 'drizzle-orm';
import type { PreAuth } from '../../authentication/own-tokens.ts';
import { secondFactors } from '../../database/account-schema.ts';
import type { Database } from '../../database/database.ts';
import type { UserKey } from '../../rate-limits/buckets.ts';
import type { Settings } from '../../settings.ts';
import type { SignInContext } from '../sign-in-context.ts';

/** A request with the pre-auth token of a user who has passed the first factor. */
export interface SecondFactorContext extends SignInContext {
  preAuth: PreAuth;
}

export type SecondFactorRow = typeof secondFactors.$inferSelect;

export const secondFactorOf = (db: Database, { issuer, gid }: UserKey) =>
  db
    .select()
    .from(secondFactors)
    .where(and(eq(secondFactors.issuer, issuer), eq(secondFactors.gid, gid)));

/** The associated data under which the secret of an app is sealed. */
export const secretSealContext = ({ issuer, gid }: UserKey) => ['second_factor', issuer, gid];

/** The step that follows a first factor for a user without a second one. A user who has one always needs it. */
export const STEP_WITHOUT_FACTOR: Record<
  Settings['TWO_FACTOR'],
  Record<PreAuth['first_factor'], 'setup' | null>
> = {
  off: { password: null, email: null },
  prompt: { password: 'setup', email: null },
  required: { password: 'setup', email: 'setup' },
};
