import { DEFAULT_LIFESPAN } from '../../shared/branch/lifespan.ts';
import type { BranchBody, Credentials } from '../support/api.ts';
import { codeOf } from './client.ts';
import { LEASE_SECONDS } from './leases.ts';
import { ModelBranch } from './model.ts';
import { findBranch, keyed, type OperationHandler, sameUnderKey } from './operation-handler.ts';
import { Sessions } from './sessions.ts';

const leaseFrom = (sent: number) => sent + LEASE_SECONDS * 1000;

export const createBatch: OperationHandler<'create_batch'> = async (run, operation, concurrent) => {
  const { api } = run.model;
  const { project, source, branches: names } = operation;
  const found = findBranch(run, { project, branch: source });
  if (!found) return;
  const { owner } = found;
  const branches = names.map((name) => {
    const branch = new ModelBranch(DEFAULT_LIFESPAN);
    owner.branches.set(name, branch);
    return branch;
  });
  owner.batches.push(names);
  const headers = keyed();
  const path = `/api/v1/projects/${owner.id}/branches/batch`;
  const body = { names, source_branch_id: found.branch.id };
  const endClone = found.branch.beginClone();
  const request = () => api.post<{ branches: BranchBody[] }>(path, body, headers);
  const outcomes = await run.send(operation, request);
  // As for a single creation.
  const permitted = ['SOURCE_BUSY'];
  const responses = run.responsesWithStatus(operation, outcomes, 201, { ...concurrent, permitted });
  const idsOf = (made: { branches: BranchBody[] }) => made.branches.map(({ id }) => id).join(' ');
  const made = await sameUnderKey(run, operation, responses, request, idsOf);
  for (const branch of branches) branch.rows = endClone();
  if (!made) return;
  const madeNames = made.branches.map(({ branch_name }) => branch_name);
  if (madeNames.join() !== names.join()) run.report(`create_batch: ${madeNames} instead of ${names}`);
  made.branches.forEach(({ id }, n) => {
    Object.assign(branches[n] ?? {}, { id, existence: owner.existence });
  });
};

/** The branch has a lease, and no operation but its renewal uses it, because it ends at any time. */
export const leaseBranch: OperationHandler<'lease_branch'> = async (run, operation, concurrent) => {
  const { api } = run.model;
  const { project, source, branch: name } = operation;
  const found = findBranch(run, { project, branch: source });
  if (!found) return;
  const { owner } = found;
  const branch = new ModelBranch(DEFAULT_LIFESPAN);
  branch.leasedUntil = leaseFrom(Date.now());
  owner.branches.set(name, branch);
  const headers = keyed();
  const body = {
    branch_name: name,
    source_branch_id: found.branch.id,
    lease_seconds: LEASE_SECONDS,
    include: ['credentials'],
  };
  const path = `/api/v1/projects/${owner.id}/branches`;
  const request = () => api.post<BranchBody & { credentials: Credentials }>(path, body, headers);
  const outcomes = await run.send(operation, request);
  // A repetition under the key can come when the lease has ended.
  const isOver = Date.now() >= branch.leasedUntil;
  const permitted = ['SOURCE_BUSY', ...(isOver ? ['NOT_FOUND'] : [])];
  const responses = run.responsesWithStatus(operation, outcomes, 201, { ...concurrent, permitted });
  const [made] = responses;
  if (new Set(responses.map(({ body: { id } }) => id)).size > 1)
    run.report('lease_branch: two branches under one key');
  branch.views.least += responses.length;
  for (const { tries } of outcomes) branch.views.most += tries;
  if (!made) return;
  branch.id = made.body.id;
  branch.existence = isOver ? 'unknown' : owner.existence;
  branch.credentials = made.body.credentials;
  run.expectEnd('lease_branch', await Sessions.open(branch), 'at_rest');
};

export const renewLease: OperationHandler<'renew_lease'> = async (run, operation, concurrent) => {
  const found = findBranch(run, operation);
  if (!found || found.branch.leasedUntil === null) return;
  const { owner, branch } = found;
  const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/lease`;
  const until = found.branch.leasedUntil;
  const sent = Date.now();
  const outcome = await run.sendOnce(operation, () => run.model.api.post<BranchBody>(path, undefined));
  const permitted = Date.now() >= until ? ['NOT_FOUND'] : [];
  const [renewed] = run.responsesWithStatus(operation, [outcome], 200, { ...concurrent, permitted });
  if (renewed) branch.leasedUntil = Math.max(until, leaseFrom(sent));
  else if (outcome.response && codeOf(outcome.response) === 'NOT_FOUND' && permitted.length > 0)
    branch.existence = concurrent.moved ? 'unknown' : 'gone';
};
