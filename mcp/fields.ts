import { z } from 'zod';

/** Fields of several tools. */
export const project_id = z.uuid().optional().describe('The project; optional if there is only one.');
export const branch = z.string().min(1).max(100).describe('Name or ID of the branch, for instance `main`.');
