import { z } from 'zod';

/** Characters of a branch name (specification 8, which names two minima: 3 is enforced). */
export const BRANCH_NAME_LENGTH = { min: 3, max: 48 } as const;

/** The branch that every project has; clients cannot create it (specification 2.4). */
export const MAIN_BRANCH = 'main';

const READS_AS_UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;

/**
 * A branch name that a client may choose (specification 2.4).
 * A name in the form of a UUID is rejected, because `:branch_ref` in a path accepts names and ids.
 */
export const BranchName = z
  .string()
  .min(BRANCH_NAME_LENGTH.min)
  .max(BRANCH_NAME_LENGTH.max)
  .regex(/^[a-z0-9_-]+$/, 'only lowercase letters, digits, hyphen and underscore')
  .refine((name) => name !== MAIN_BRANCH, `"${MAIN_BRANCH}" is reserved`)
  .refine((name) => !READS_AS_UUID.test(name), 'must not have the form of a UUID')
  .meta({ example: 'pr-42' });
