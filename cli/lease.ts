import { randomBytes } from 'node:crypto';
import type { Schemas } from '../client/client.ts';
import { dataOf, ResponseError } from '../client/response-error.ts';
import { say } from './output.ts';
import { findBranch, type Session } from './session.ts';

const LEASE_SECONDS = 60;

interface Wanted {
  projectId: string;
  /** Name or ID of the source; `main` if left out. */
  from?: string | undefined;
  ttlSeconds?: number | undefined;
  /** The command, which is the beginning of the branch's name, and its label `purpose`. */
  purpose: 'exec' | 'rehearse';
  /** How long the branch outlives a killed command. */
  leaseSeconds?: number | undefined;
}

/** A branch for one command. */
export interface LeasedBranch {
  credentials: Schemas['Credentials'];
  /** Deletes it. */
  end(): Promise<void>;
}

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

/**
 * Creates a branch that is deleted with this command, or when its lease ends after a kill.
 * @param signal deletes it again if it is aborted during the creation
 */
export async function leaseBranch(
  session: Session,
  wanted: Wanted,
  signal: AbortSignal,
): Promise<LeasedBranch> {
  const { projectId: project_id, from, ttlSeconds, purpose, leaseSeconds = LEASE_SECONDS } = wanted;
  const { client } = session;
  const branch_name = `${purpose}-${randomBytes(5).toString('hex')}`;
  const path = { project_id, branch_ref: branch_name };
  const source = from === undefined ? null : await findBranch(session, project_id, from);
  const remove = async () => {
    const { response } = await client.api.DELETE(BRANCH, { params: { path } });
    if (!response.ok && response.status !== 404) throw new ResponseError(response, null);
  };
  const body = {
    branch_name,
    lease_seconds: leaseSeconds,
    allow: ['me'],
    labels: { purpose },
    include: ['credentials' as const],
    ...(source && { source_branch_id: source.id }),
    ...(ttlSeconds !== undefined && { ttl_seconds: ttlSeconds }),
  };
  const made = await client
    .create(BRANCHES, { params: { path: { project_id } }, body }, { signal })
    .catch(async (error) => {
      // The request may have been received.
      if (signal.aborted) await remove().catch(() => {});
      throw error;
    });
  const { credentials } = made;
  if (!credentials) throw new Error('the response to the creation has no credentials');
  const renewal = setInterval(renew, (leaseSeconds * 1000) / 3);

  async function renew() {
    await dataOf(
      client.api.POST('/api/v1/projects/{project_id}/branches/{branch_ref}/lease', { params: { path } }),
    ).catch((error) =>
      say(
        `The lease of ${branch_name} could not be renewed: ${error instanceof Error ? error.message : error}`,
      ),
    );
  }

  return {
    credentials,
    async end() {
      clearInterval(renewal);
      await remove().catch(() =>
        say(`${branch_name} could not be deleted now. It is deleted when its lease ends.`),
      );
    },
  };
}
