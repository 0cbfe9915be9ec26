import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_LIFESPAN } from '../../shared/branch/lifespan.ts';
import type { BranchBody } from '../support/api.ts';
import type { ActorRun } from './actor-run.ts';
import { codeOf } from './client.ts';
import { contentOf, ModelBranch, type ModelSnapshot, type Promised, type Title } from './model.ts';
import {
  type Concurrent,
  findBranch,
  idOf,
  keyed,
  type OperationHandler,
  sameUnderKey,
} from './operation-handler.ts';
import { MAIN, type OperationOf } from './schedule.ts';
import { Sessions } from './sessions.ts';

/** A fault may hold a transaction open in the source for longer than a clone waits. */
const BUSY = ['SOURCE_BUSY'];

/**
 * The codes that protection permits for a request without the name of the branch; and whether it must be
 * refused.
 */
export function protectionOf({ isProtected }: ModelBranch, name: string, confirms = false) {
  const states = name === MAIN ? new Set([true]) : isProtected.possible;
  const mayRefuse = !confirms && states.has(true);
  return { permitted: mayRefuse ? ['BRANCH_PROTECTED'] : [], mustRefuse: mayRefuse && !states.has(false) };
}

export const takeSnapshot: OperationHandler<'take_snapshot'> = async (run, operation, concurrent) => {
  const { api } = run.model;
  const found = findBranch(run, operation);
  if (!found) return;
  const { owner, branch } = found;
  const snapshot: ModelSnapshot = { id: '', existence: 'unknown', rows: new Map() };
  owner.snapshots.set(operation.snapshot, snapshot);
  const headers = keyed();
  const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/snapshots`;
  const endClone = branch.beginClone();
  const request = () => api.post<{ id: string }>(path, { name: operation.snapshot }, headers);
  const outcomes = await run.send(operation, request);
  const responses = run.responsesWithStatus(operation, outcomes, 201, { ...concurrent, permitted: BUSY });
  const made = await sameUnderKey(run, operation, responses, request, idOf);
  snapshot.rows = endClone();
  if (!made) return;
  Object.assign(snapshot, { id: made.id, existence: 'there' });
  const { spares } = operation;
  if (spares === 0) return;
  const change = () => api.patch(`/api/v1/projects/${owner.id}/snapshots/${made.id}`, { spares });
  run.responsesWithStatus(operation, [await run.sendOnce(operation, change)], 200, concurrent);
};

/** Branches of a snapshot have its content, whether each is a clone or a spare that the host had ready. */
export const branchSnapshot: OperationHandler<'branch_snapshot'> = async (run, operation, concurrent) => {
  const { project, branches: names } = operation;
  const owner = run.model.project(project);
  const snapshot = owner?.snapshots.get(operation.snapshot);
  if (owner?.existence !== 'there' || snapshot?.existence !== 'there') return;
  await sleep(operation.rest_ms);
  const branches = names.map((name) => {
    const branch = new ModelBranch(DEFAULT_LIFESPAN, contentOf(snapshot.rows, new Map()));
    owner.branches.set(name, branch);
    return branch;
  });
  const isBatch = names.length > 1;
  if (isBatch) owner.batches.push(names);
  const headers = keyed();
  const path = `/api/v1/projects/${owner.id}/branches${isBatch ? '/batch' : ''}`;
  const body = { snapshot_id: snapshot.id, ...(isBatch ? { names } : { branch_name: names[0] }) };
  const request = async () => {
    const response = await run.model.api.post<BranchBody & { branches?: BranchBody[] }>(path, body, headers);
    return { ...response, body: { ...response.body, branches: response.body.branches ?? [response.body] } };
  };
  const outcomes = await run.send(operation, request);
  const responses = run.responsesWithStatus(operation, outcomes, 201, concurrent);
  const idsOf = (made: { branches: BranchBody[] }) => made.branches.map(({ id }) => id).join(' ');
  const made = await sameUnderKey(run, operation, responses, request, idsOf);
  made?.branches.forEach(({ id }, n) => {
    Object.assign(branches[n] ?? {}, { id, existence: owner.existence });
  });
};

/** @param endCopy returns the rows of a copy that was made between this call and its own */
async function reset(
  run: ActorRun,
  operation: OperationOf<'reset_to_parent'> | OperationOf<'reset_to_snapshot'>,
  concurrent: Concurrent,
  to: string,
  endCopy: () => Map<number, Promised<Title>>,
): Promise<void> {
  const found = findBranch(run, operation);
  if (!found) return;
  const { owner, branch } = found;
  const sessions = await Sessions.open(branch);
  const { permitted, mustRefuse } = protectionOf(branch, operation.branch, operation.confirms);
  const headers = keyed();
  const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/reset`;
  const body = { to, ...(operation.confirms && { confirm: operation.branch }) };
  const outcome = await run.sendOnce(operation, () => run.model.api.post<BranchBody>(path, body, headers));
  // HOST_BUSY: a job of the branch is still open, for instance after a fault.
  const [done] = run.responsesWithStatus(operation, [outcome], 200, {
    ...concurrent,
    permitted: [...permitted, ...BUSY, 'HOST_BUSY'],
  });
  run.expectEnd(operation.kind, sessions, done ? 'now' : 'never');
  if (!done) return;
  if (mustRefuse) run.report(`${operation.kind}: the protected branch ${operation.branch} was reset`);
  branch.rows = contentOf(endCopy(), branch.rows);
}

export const resetToParent: OperationHandler<'reset_to_parent'> = async (run, operation, concurrent) => {
  const found = findBranch(run, operation);
  const parent = findBranch(run, { project: operation.project, branch: operation.source });
  if (!found || !parent || found.branch.parent !== parent.branch) return;
  await reset(run, operation, concurrent, 'parent', parent.branch.beginClone());
};

export const resetToSnapshot: OperationHandler<'reset_to_snapshot'> = async (run, operation, concurrent) => {
  const snapshot = run.model.project(operation.project)?.snapshots.get(operation.snapshot);
  if (snapshot?.existence !== 'there') return;
  await reset(run, operation, concurrent, snapshot.id, () => snapshot.rows);
};

export const restoreBranch: OperationHandler<'restore_branch'> = async (run, operation, concurrent) => {
  const owner = run.model.project(operation.project);
  const branch = owner?.branches.get(operation.branch);
  if (owner?.existence !== 'there' || branch?.existence !== 'gone' || !branch.id) return;
  branch.existence = 'unknown';
  const headers = keyed();
  const path = `/api/v1/projects/${owner.id}/branches/${branch.id}/restore`;
  const request = () => run.model.api.post<BranchBody>(path, undefined, headers);
  const outcome = await run.sendOnce(operation, request);
  const { response, doubtful } = outcome;
  // The host may have needed the room. HOST_BUSY: the deletion is under way.
  const permitted = [...BUSY, 'NOT_FOUND', 'SOURCE_NOT_ACTIVE', 'HOST_BUSY'];
  const [restored] = run.responsesWithStatus(operation, [outcome], 200, { ...concurrent, permitted });
  if (restored) {
    if (restored.body.id !== branch.id)
      run.report(`restore_branch: ${restored.body.id} instead of ${branch.id}`);
    branch.existence = owner.existence;
    // Its parent may have been deleted before it.
    branch.parent = null;
  } else if (response && !doubtful) {
    branch.existence = 'gone';
    branch.wasPurged =
      ['NOT_FOUND', 'SOURCE_NOT_ACTIVE'].includes(codeOf(response)) &&
      !branch.isForgotten &&
      !concurrent.moved &&
      !concurrent.deleted;
  }
};

export const protectBranch: OperationHandler<'protect_branch'> = async (run, operation, concurrent) => {
  const found = findBranch(run, operation);
  if (!found) return;
  const { owner, branch } = found;
  const path = `/api/v1/projects/${owner.id}/branches/${branch.id}`;
  branch.isProtected.ask(operation.protect);
  const outcome = await run.sendOnce(operation, () =>
    run.model.api.patch(path, { protected: operation.protect }),
  );
  const done = run.responsesWithStatus(operation, [outcome], 200, concurrent).length > 0;
  branch.isProtected.learn(operation.protect, { done, doubtful: outcome.doubtful });
};
