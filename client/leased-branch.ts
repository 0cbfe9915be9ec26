import type { BranchgateClient, Schemas } from './client.ts';
import { dataOf, ResponseError } from './response-error.ts';

export type BranchData = Schemas['Branch']['data'];

const LEASE_SECONDS = 60;
/** Of a branch's name (specification 8). */
const NAME_MAX = 48;

const BRANCHES = '/api/v1/projects/{project_id}/branches';
const BRANCH = `${BRANCHES}/{branch_ref}` as const;

export interface LeaseRequest {
  projectId: string;
  /** ID of the source; `main` if left out. */
  sourceId?: string | undefined;
  /** What the branch has of its source; by default everything. */
  data?: BranchData | undefined;
  /** What the branch is for: the beginning of its name, and its label `purpose`. */
  purpose: string;
  /** How long the branch outlives its killed user. */
  leaseSeconds?: number | undefined;
  /** Its longest life. */
  ttlSeconds?: number | undefined;
  /** Networks that may connect; by default that of the caller. */
  allow?: string[];
  labels?: Record<string, string>;
}

export interface LeaseOptions {
  /** Deletes the branch again if it is aborted during the creation. */
  signal: AbortSignal;
  /** Reports what a person should know. */
  say: (sentence: string) => void;
}

/** A branch for one purpose, which does not outlive it. */
export interface LeasedBranch {
  name: string;
  credentials: Schemas['Credentials'];
  /** Deletes it. */
  end(): Promise<void>;
}

const reasonOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

/**
 * A name that no other branch has, and that matches the pattern of a credential that is limited to branches.
 * A pattern without `*` admits one name only.
 */
export function freeName(purpose: string, pattern: string | null): string {
  const random = Array.from(crypto.getRandomValues(new Uint8Array(5)), (byte) =>
    byte.toString(16).padStart(2, '0'),
  ).join('');
  const [prefix = '', suffix] = (pattern ?? '*').split('*');
  if (suffix === undefined) return prefix;
  const room = Math.max(1, NAME_MAX - prefix.length - suffix.length);
  return `${prefix}${`${purpose}-${random}`.slice(-room)}${suffix}`;
}

/** Creates a branch that is deleted by its user, or when its lease ends after a kill. */
export async function leaseBranch(
  client: BranchgateClient,
  request: LeaseRequest,
  { signal, say }: LeaseOptions,
): Promise<LeasedBranch> {
  const {
    projectId: project_id,
    sourceId,
    data,
    purpose,
    ttlSeconds,
    leaseSeconds = LEASE_SECONDS,
  } = request;
  const { branch_pattern: pattern = null } = await dataOf(client.api.GET('/api/v1/me', { signal }));
  const name = freeName(purpose, pattern);
  const path = { project_id, branch_ref: name };
  const remove = async () => {
    const { response } = await client.api.DELETE(BRANCH, { params: { path } });
    if (!response.ok && response.status !== 404) throw new ResponseError(response, null);
  };
  const body = {
    branch_name: name,
    lease_seconds: leaseSeconds,
    connection_attempts_per_minute: 'max' as const,
    allow: request.allow ?? ['me'],
    labels: { ...request.labels, purpose },
    include: ['credentials' as const],
    ...(sourceId !== undefined && { source_branch_id: sourceId }),
    ...(data !== undefined && { data }),
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
  const renew = async () => {
    await dataOf(client.api.POST(`${BRANCH}/lease`, { params: { path } })).catch((error) =>
      say(`The lease of ${name} could not be renewed: ${reasonOf(error)}`),
    );
  };
  const renewal = setInterval(renew, (leaseSeconds * 1000) / 3);
  return {
    name,
    credentials,
    async end() {
      clearInterval(renewal);
      await remove().catch(() => say(`${name} could not be deleted now. It is deleted when its lease ends.`));
    },
  };
}
