import { z } from 'zod';

/** Display name of the project; never used in SQL. */
export const ProjectName = z.string().trim().min(1).max(100).meta({ example: 'Shop' });

/** With a part `br`, `db_<app_key>_<env>` could equal the database name of another project's branch. */
const NO_BR_PART = (text: string) => !text.split('_').includes('br');

/** First part of a project's database names (specification 2.4); unique together with its environment. */
export const AppKey = z
  .string()
  .min(1)
  .max(48)
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
  const stem = parts
    .join('_')
    .slice(0, DERIVED_KEY_LENGTH)
    .replace(/_(br)?$/, '');
  return [stem || 'project', suffix].join('_');
}
