import { z } from 'zod';
import { BRANCH_DATA } from '../shared/masking.ts';

/** Fields of several tools. */
export const project_id = z
  .uuid()
  .optional()
  .meta({
    description: 'The project; optional if there is only one.',
    examples: ['7c9e6679-7425-40de-944b-e07fc1f90ae7'],
  });
export const data = z
  .enum(BRANCH_DATA)
  .optional()
  .meta({
    description:
      'What the copy has: `full` everything, `masked` other values by the policy of the project, `none` the schema without rows. Some credentials get masked data only.',
    examples: ['masked'],
  });
export const branch = z
  .string()
  .min(1)
  .max(100)
  .meta({ description: 'Name or ID of the branch, for instance `main`.', examples: ['agent-checkout'] });
/** The branch that is copied. */
export const from = branch
  .default('main')
  .meta({ description: 'Name or ID of the branch to copy.', examples: ['main'] });
