import { and, eq } from 'drizzle-orm';
import { secondFactors } from '../../database/account-schema.ts';
import type { Database } from '../../database/database.ts';
import type { UserKey } from '../../rate-limits/buckets.ts';
import type { Settings } from '../../settings.ts';

export type SecondFactorRow = typeof secondFactors.$inferSelect;

export const secondFactorOf = (db: Database, { issuer, gid }: UserKey) =>
  db
    .select()
    .from(secondFactors)
    .where(and(eq(secondFactors.issuer, issuer), eq(secondFactors.gid, gid)));

/** Where the secret of an app is sealed. */
export const sealedSecretPlace = ({ issuer, gid }: UserKey) => ['second_factor', issuer, gid];

type FirstFactor = 'password' | 'email';

/** What is due after the first factor of a user who has no second (api.md, 2FA). Who has one is always asked for it. */
export const STEP_WITHOUT_FACTOR: Record<Settings['TWO_FACTOR'], Record<FirstFactor, 'setup' | null>> = {
  off: { password: null, email: null },
  prompt: { password: 'setup', email: null },
  required: { password: 'setup', email: 'setup' },
};
