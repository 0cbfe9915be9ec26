import { and, eq, isNull, or } from 'drizzle-orm';
import { isInNetwork } from '../../shared/cidr.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { networkRules } from '../database/schema.ts';
import { creatorNetwork } from './creator-rule.ts';

interface BranchIds {
  id: string;
  projectId: string;
}

/** The networks that may connect to branches of a project; `branchId` null: to all of them. */
export const rulesOfBranches = (db: Database, projectId: string, branchIds: readonly string[]) =>
  db
    .select({ branchId: networkRules.branchId, cidr: networkRules.cidr })
    .from(networkRules)
    .where(
      and(
        eq(networkRules.projectId, projectId),
        or(isNull(networkRules.branchId), isOneOf(networkRules.branchId, branchIds)),
      ),
    );

/** A warning with the remedy, if no rule lets this address connect: PostgreSQL's own refusal names neither. */
export function missingRule(
  { id, projectId }: BranchIds,
  rules: readonly { branchId: string | null; cidr: string }[],
  connectingIp: string | null,
): { warning?: string } {
  const network = creatorNetwork(connectingIp);
  if (network === null || connectingIp === null) return {};
  const ofBranch = rules.filter(({ branchId }) => branchId === null || branchId === id);
  if (ofBranch.some(({ cidr }) => isInNetwork(connectingIp, cidr))) return {};
  const body = JSON.stringify({ cidr: network, branch_id: id });
  return {
    warning: `No network rule lets your address ${connectingIp} connect. To add one, send POST /api/v1/projects/${projectId}/network-rules with the body ${body}.`,
  };
}
