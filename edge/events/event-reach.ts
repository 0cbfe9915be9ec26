import type { Principal } from '../authentication/principal.ts';
import { matchesPattern } from '../branches/branch-pattern.ts';

/** Whom an event is for, as the log stores it. */
export type EventScope = {
  /** Of the project at the time of the change. */
  tenant_id: string;
  /** JSON: the names of the branches that the event is about, without `main`. */
  branch_names: string;
  /** The machine that started the job that the event is about. */
  machine_id: string | null;
};

/**
 * Whether a caller that can see the project sees this event. A project can move to another tenant, whose events are not
 * for a client of the former one. A machine limited to branches sees their events and those of its own jobs
 * (`jobsInReach`), but none of the project or of `main`.
 */
export function isInReach(
  { tenant_id, branch_names, machine_id }: EventScope,
  { tenantId, machine }: Pick<Principal, 'tenantId' | 'machine'>,
): boolean {
  if (tenant_id !== tenantId) return false;
  const pattern = machine?.branchPattern ?? null;
  if (pattern === null || machine_id === machine?.id) return true;
  const names: string[] = JSON.parse(branch_names);
  return names.length > 0 && names.every((name) => matchesPattern(pattern, name));
}
