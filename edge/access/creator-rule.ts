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

/** The rule with which the creator can connect immediately. It is part of the branch's reservation. */
export const creatorRule = (
  project: { id: string; tenantId: string },
  branch: { id: string; createdBy: string },
  cidr: string,
  now: Date,
): NetworkRuleRow => ({
  id: crypto.randomUUID(),
  projectId: project.id,
  branchId: branch.id,
  cidr,
  description: 'Address the branch was created from',
  source: 'creator_ip',
  revision: 0,
  createdBy: branch.createdBy,
  tenantId: project.tenantId,
  createdAt: now,
});
