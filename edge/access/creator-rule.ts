import { CLOUDFLARE_WORKERS_ADDRESS, readCidr } from '../../shared/cidr.ts';
import type { NetworkRuleRow } from './network-rule-resource.ts';

/**
 * The network of the address a branch was created from (spec 4.3, step 5), as Cloudflare tells it; null when
 * it tells none, or when the call comes from a Worker, whose address is everybody's.
 */
export function creatorNetwork(connectingIp: string | null): string | null {
  if (!connectingIp || connectingIp === CLOUDFLARE_WORKERS_ADDRESS) return null;
  const reading = readCidr(connectingIp);
  return reading.ok ? reading.cidr : null;
}

/** The rule that lets the creator connect at once. It comes with the reservation of the branch. */
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
