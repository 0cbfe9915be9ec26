import { z } from 'zod';
import { BRANCH_DATA } from '../shared/masking.ts';

/** Fields of several tools. */
export const project_id = z.uuid().optional().describe('The project; optional if there is only one.');
export const data = z
  .enum(BRANCH_DATA)
  .optional()
  .describe(
    'What the copy has: `full` everything, `masked` other values by the policy of the project, `none` the schema without rows. Some credentials get masked data only.',
  );
export const branch = z.string().min(1).max(100).describe('Name or ID of the branch, for instance `main`.');
