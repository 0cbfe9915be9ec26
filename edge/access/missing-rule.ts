import { and, eq, isNull, or } from 'drizzle-orm';
import { isInNetwork } from '../../shared/cidr.ts';
import type { Database } from '../database/database.ts';
import { networkRules } from '../database/schema.ts';
import { creatorNetwork } from './creator-rule.ts';

interface BranchIds {
  id: string;
  projectId: string;
}

/** The networks that may connect to a branch. */
export const rulesOfBranch = (db: Database, { id, projectId }: BranchIds) =>
  db
    .select({ cidr: networkRules.cidr })
    .from(networkRules)
    .where(
      and(
        eq(networkRules.projectId, projectId),
        or(isNull(networkRules.branchId), eq(networkRules.branchId, id)),
      ),
    );

/** A warning with the remedy, if no rule lets this address connect: PostgreSQL's own refusal names neither. */
export function missingRule(
  { id, projectId }: BranchIds,
  rules: readonly { cidr: string }[],
  connectingIp: string | null,
): { warning?: string } {
  const network = creatorNetwork(connectingIp);
  if (network === null || connectingIp === null) return {};
  if (rules.some(({ cidr }) => isInNetwork(connectingIp, cidr))) return {};
  const body = JSON.stringify({ cidr: network, branch_id: id });
  return {
    warning: `No network rule lets your address ${connectingIp} connect. To add one, send POST /api/v1/projects/${projectId}/network-rules with the body ${body}.`,
  };
}
