import { z } from 'zod';
import { endOfChange } from '../client/changes.ts';
import { dataOf } from '../client/response-error.ts';
import { projectOf } from './branches.ts';
import { project_id } from './fields.ts';
import { ADDS, type Tool, ToolError, tool } from './tool.ts';

const CHANGES = '/api/v1/projects/{project_id}/changes';

/** An agent proposes a change of `main`, and a person applies it. */
export const proposeChange: Tool = tool({
  name: 'propose_change',
  description:
    'Plans a change of the schema of main, from a branch or from SQL, and rehearses it on a copy. A person reviews and applies it. Reports locks, findings and dangers.',
  effect: ADDS,
  hasContent: true,
  input: z.strictObject({
    project_id,
    from: z
      .string()
      .min(1)
      .max(100)
      .optional()
      .meta({
        description: 'Name or ID of the branch whose schema main is to have.',
        examples: ['agent-checkout'],
      }),
    sql: z
      .string()
      .min(1)
      .optional()
      .meta({
        description: 'The statements, in place of those of the schema difference.',
        examples: ['alter table item add price int'],
      }),
  }),
  async run(context, { from, sql, ...input }) {
    if (from === undefined && sql === undefined) throw new ToolError('Give from with a branch, or sql.');
    const { client, signal } = context;
    const path = { project_id: await projectOf(context, input.project_id) };
    const body = { ...(from !== undefined && { from }), ...(sql !== undefined && { sql }) };
    const { id: change_id } = await dataOf(client.api.POST(CHANGES, { params: { path }, body, signal }));
    const params = { path: { ...path, change_id } };
    const begun = await dataOf(client.api.POST(`${CHANGES}/{change_id}/rehearse`, { params, signal }));
    const { id, state, statements, rehearsal, approvals_required, longest_lock_ms } = await endOfChange(
      client,
      begun,
      { signal },
    );
    return { id, state, approvals_required, longest_lock_ms, statements, rehearsal };
  },
});
