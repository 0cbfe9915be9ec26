import type { BranchgateClient, Schemas } from './client.ts';
import { type LeaseOptions, type LeaseRequest, leaseBranch } from './leased-branch.ts';
import { dataOf } from './response-error.ts';

const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

export interface RehearsalRequest extends Omit<LeaseRequest, 'purpose'> {
  /** From when on a lock is a danger. */
  limits?: { lock_ms: number; table_bytes: number };
}

type Report = NonNullable<Schemas['Rehearsal']['report']>;

/** The gateway knows the branch only, which a migration that fails early leaves as safe as before. */
export type MigrationReport = Omit<Report, 'verdict'> & { verdict: Report['verdict'] | 'failed' };

export interface Rehearsed<Result> {
  /** What the migration did to the branch; of a failed one, until it failed. */
  rehearsal: Omit<Schemas['Rehearsal'], 'report'> & { report: MigrationReport | null };
  /** What `migrate` returned. */
  result: Result;
}

interface Migration<Result> {
  /** Gets the credentials of the owner's login. */
  migrate: (credentials: Schemas['Credentials']) => Promise<Result>;
  hasFailed: (result: Result) => boolean;
}

/** Runs a migration on a branch of its own, which is deleted afterwards. */
export async function rehearse<Result>(
  client: BranchgateClient,
  { limits, ...request }: RehearsalRequest,
  { migrate, hasFailed }: Migration<Result>,
  options: LeaseOptions,
): Promise<Rehearsed<Result>> {
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
    const { report } = rehearsal;
    const isFailed = report !== null && hasFailed(result);
    return {
      rehearsal: isFailed ? { ...rehearsal, report: { ...report, verdict: 'failed' } } : rehearsal,
      result,
    };
  } finally {
    await leased.end();
  }
}
