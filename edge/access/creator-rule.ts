import { CLOUDFLARE_WORKERS_ADDRESS, readCidr } from '../../shared/cidr.ts';
import type { NetworkRuleRow } from './network-rule-resource.ts';

/**
 * The network of the address that a branch was created from (specification 4.3, step 5), as Cloudflare reports it; null
 * if it reports none, or if the request comes from a Worker, whose address is shared by all Workers.
 */
export function creatorNetwork(connectingIp: string | null): string | null {
  if (!connectingIp || connectingIp === CLOUDFLARE_WORKERS_ADDRESS) return null;
  const reading = readCidr(connectingIp);
  return reading.ok ? reading.cidr : null;
}

/**
 * The rules of a new branch, which are part of its reservation: one with which its creator can connect immediately, and
 * those that the creator asked for.
 */
export function newBranchRules(
  project: { id: string; tenantId: string },
  branch: { id: string; createdBy: string },
  { creatorCidr, allow }: { creatorCidr: string | null; allow: readonly string[] },
  now: Date,
): NetworkRuleRow[] {
  const rule = (cidr: string, source: NetworkRuleRow['source'], description: string | null) => ({
    id: crypto.randomUUID(),
    projectId: project.id,
    branchId: branch.id,
    cidr,
    description,
    source,
    revision: 0,
    createdBy: branch.createdBy,
    tenantId: project.tenantId,
    createdAt: now,
    expiresAt: null,
  });
  return [
    ...(creatorCidr === null ? [] : [rule(creatorCidr, 'creator_ip', 'Address the branch was created from')]),
    ...[...new Set(allow)].filter((cidr) => cidr !== creatorCidr).map((cidr) => rule(cidr, 'manual', null)),
  ];
}
