import type { BranchgateClient, Schemas } from './client.ts';
import { type LeaseOptions, type LeaseRequest, leaseBranch } from './leased-branch.ts';
import { dataOf } from './response-error.ts';

const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

export interface RehearsalRequest extends Omit<LeaseRequest, 'purpose'> {
  /** From when on a lock is a danger. */
  limits?: { lock_ms: number; table_bytes: number };
}

/**
 * Runs a migration on a branch of its own, which is deleted afterwards.
 * @param migrate gets the credentials of the owner's login
 * @returns what the migration did to the branch, and what `migrate` returned
 */
export async function rehearse<Result>(
  client: BranchgateClient,
  { limits, ...request }: RehearsalRequest,
  migrate: (credentials: Schemas['Credentials']) => Promise<Result>,
  options: LeaseOptions,
): Promise<{ rehearsal: Schemas['Rehearsal']; result: Result }> {
  const { signal, say } = options;
  const leased = await leaseBranch(client, { ...request, purpose: 'rehearse' }, options);
  try {
    say(`Branch: ${leased.name}`);
    const params = { path: { project_id: request.projectId, branch_ref: leased.name } };
    const ofOwner = { ...params, query: { role: 'owner' as const } };
    const credentials = await dataOf(client.api.GET(`${BRANCH}/credentials`, { params: ofOwner, signal }));
    say('Recording the tables and the schema.');
    const body = limits ? { limits } : {};
    await dataOf(client.api.POST(`${BRANCH}/rehearsal`, { params, body, signal }));
    const result = await migrate(credentials);
    signal.throwIfAborted();
    say('Comparing.');
    const rehearsal = await dataOf(client.api.POST(`${BRANCH}/rehearsal/finish`, { params, signal }));
    return { rehearsal, result };
  } finally {
    await leased.end();
  }
}
