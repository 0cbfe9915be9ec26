import { z } from 'zod';

/** Spec section 8: a slug has at most 48 characters; of the two minima it names, 3 is enforced. */
export const BRANCH_NAME_LENGTH = { min: 3, max: 48 } as const;

/** The branch every project has; it cannot be created by hand (spec 2.4). */
export const MAIN_BRANCH = 'main';

const READS_AS_UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/**
 * A branch name that a client may choose (spec 2.4).
 * A name that reads as a UUID is refused: `:branch_ref` in a path could not tell it from an id.
 */
export const BranchName = z
  .string()
  .min(BRANCH_NAME_LENGTH.min)
  .max(BRANCH_NAME_LENGTH.max)
  .regex(/^[a-z0-9_-]+$/, 'only lowercase letters, digits, hyphen and underscore')
  .refine((name) => name !== MAIN_BRANCH, `"${MAIN_BRANCH}" is reserved`)
  .refine((name) => !READS_AS_UUID.test(name), 'a name must not read as a UUID')
  .meta({ example: 'pr-42' });
