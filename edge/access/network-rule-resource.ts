import { z } from 'zod';
import { networkRules } from '../database/schema.ts';

export type NetworkRuleRow = typeof networkRules.$inferSelect;

/** `applied`: the rule is known to be in effect on both ports. */
export const NetworkRule = z
  .strictObject({
    id: z.uuid(),
    project_id: z.uuid(),
    branch_id: z
      .uuid()
      .nullable()
      .meta({ description: 'Null: the rule is for every branch of the project.' }),
    cidr: z.string().meta({ example: '203.0.113.0/24' }),
    description: z.string().nullable().meta({ example: 'Office' }),
    source: z
      .enum(networkRules.source.enumValues)
      .meta({ description: '`creator_ip`: added with a branch for the address of its creator.' }),
    status: z
      .enum(['applied', 'pending'])
      .meta({ description: '`applied`: in effect on both ports. `pending`: the host is not connected.' }),
    created_by: z.uuid(),
    created_at: z.iso.datetime(),
    expires_at: z.iso
      .datetime()
      .nullable()
      .meta({ description: 'The rule is removed then. Null: it stays.', example: null }),
  })
  .meta({ id: 'NetworkRule' });

export const toNetworkRuleResponse = (
  row: NetworkRuleRow,
  applied: boolean,
): z.output<typeof NetworkRule> => ({
  id: row.id,
  project_id: row.projectId,
  branch_id: row.branchId,
  cidr: row.cidr,
  description: row.description,
  source: row.source,
  status: applied ? 'applied' : 'pending',
  created_by: row.createdBy,
  created_at: row.createdAt.toISOString(),
  expires_at: row.expiresAt?.toISOString() ?? null,
});
