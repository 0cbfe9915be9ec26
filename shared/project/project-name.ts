import { z } from 'zod';
import { BRANCH_NAME_LENGTH } from '../branch/branch-name.ts';
import { branchDatabaseName, DATABASE_NAME_MAX, maxSlugLength } from '../branch/database-name.ts';

/** Display name of the project; never used in SQL. */
export const ProjectName = z.string().trim().min(1).max(100).meta({ example: 'Shop' });

/** With a part `br`, `db_<app_key>_<env>` could equal the database name of another project's branch. */
const NO_BR_PART = (text: string) => !text.split('_').includes('br');

const APP_KEY_MAX = 48;

/**
 * First part of a project's database names (specification 2.4); unique in the service together with its
 * environment.
 */
export const AppKey = z
  .string()
  .min(1)
  .max(APP_KEY_MAX)
  .regex(/^[a-z0-9]+(_[a-z0-9]+)*$/, 'lowercase letters and digits in parts joined by single underscores')
  .refine(NO_BR_PART, 'no part may be "br"')
  .meta({ description: 'Derived from the name when omitted.', example: 'shop' });

export const Environment = z
  .string()
  .min(1)
  .max(7)
  .regex(/^[a-z0-9]+$/, 'only lowercase letters and digits')
  .refine(NO_BR_PART, 'must not be "br"')
  .meta({ example: 'prod' });

export const DEFAULT_ENVIRONMENT = 'prod';

const DERIVED_KEY_LENGTH = 20;
/** What cutting a valid key can leave at its end. */
const CUT_PART = /_(br)?$/;

/**
 * Derives an app key from a project's name: at most 20 characters of it, then `_` and `suffix`.
 * @param suffix four characters of `[a-z0-9]`, random
 */
export function deriveAppKey(name: string, suffix: string): string {
  const parts = name
    .normalize('NFKD')
    .toLowerCase()
    .split(/[^a-z0-9]+/)
    .filter((part) => part !== '' && part !== 'br');
  const stem = parts.join('_').slice(0, DERIVED_KEY_LENGTH).replace(CUT_PART, '');
  return [stem || 'project', suffix].join('_');
}

/**
 * The app key followed by `_` and `suffix`. A long one is cut, so that the result is valid and leaves room
 * for the shortest branch name.
 * @param suffix four characters of `[a-z0-9]`, random
 */
export function suffixedAppKey(appKey: string, env: string, suffix: string): string {
  const ending = `_${suffix}`;
  const shortest = branchDatabaseName('', env, '').length + BRANCH_NAME_LENGTH.min;
  const longest = Math.min(APP_KEY_MAX, DATABASE_NAME_MAX - shortest) - ending.length;
  return `${appKey.slice(0, longest).replace(CUT_PART, '')}${ending}`;
}

/** Whether the shortest branch name fits into the database names of a project. */
export const hasRoomForBranches = (appKey: string, env: string): boolean =>
  maxSlugLength(appKey, env) >= BRANCH_NAME_LENGTH.min;
