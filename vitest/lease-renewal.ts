import type { BranchgateClient } from '../client/client.ts';

const LEASE = '/api/v1/projects/{project_id}/branches/{branch_ref}/lease';
const BRANCH = '/api/v1/projects/{project_id}/branches/{branch_ref}';

/** Keeps leased branches while this process lives. After a kill they are gone when their leases end. */
export class LeaseRenewal {
  readonly #client: BranchgateClient;
  readonly #projectId: string;
  readonly #branchIds: readonly string[];
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(
    client: BranchgateClient,
    projectId: string,
    branchIds: readonly string[],
    leaseSeconds: number,
  ) {
    this.#client = client;
    this.#projectId = projectId;
    this.#branchIds = branchIds;
    this.#timer = setInterval(() => this.#each('renew'), (leaseSeconds * 1000) / 3);
    this.#timer.unref();
  }

  /** Deletes the branches. */
  async end(): Promise<void> {
    clearInterval(this.#timer);
    await this.#each('delete');
  }

  /**
   * A failed renewal is repeated by the next one, and a failed deletion is made up for by the end of the
   * lease.
   */
  async #each(action: 'renew' | 'delete'): Promise<void> {
    const { api } = this.#client;
    const requests = this.#branchIds.map((branch_ref) => {
      const params = { path: { project_id: this.#projectId, branch_ref } };
      return action === 'renew' ? api.POST(LEASE, { params }) : api.DELETE(BRANCH, { params });
    });
    await Promise.allSettled(requests);
  }
}
