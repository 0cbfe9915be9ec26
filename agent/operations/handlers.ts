import { type Method, type MethodResult, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import type { OnProgress } from '../progress.ts';
import { HostError } from '../servers/host-error.ts';
import { makeRoom } from '../snapshots/make-room.ts';
import { applyAccess } from './access-apply.ts';
import { cloneBatchBranches } from './batch-clone.ts';
import { finalizeBatch } from './batch-finalize.ts';
import { prepareBatch } from './batch-prepare.ts';
import { proveBatch } from './batch-prove.ts';
import { cloneBranch } from './branch-clone.ts';
import { diffBranch } from './branch-diff.ts';
import { dropBranch } from './branch-drop.ts';
import { finalizeBranch } from './branch-finalize.ts';
import { keepBranch } from './branch-keep.ts';
import { prepareBranch } from './branch-prepare.ts';
import { proveBranch } from './branch-prove.ts';
import { describeHost } from './host-describe.ts';
import { takeInventory } from './host-inventory.ts';
import { digestInventory } from './inventory-digest.ts';
import { listInventory } from './inventory-list.ts';
import { dropProject } from './project-drop.ts';
import { sizeProject } from './project-size.ts';
import { runQuery } from './query-run.ts';
import { finishRehearsal } from './rehearsal-finish.ts';
import { reportRehearsal } from './rehearsal-read.ts';
import { startRehearsal } from './rehearsal-start.ts';
import { cancelReset } from './reset-cancel.ts';
import { cloneForReset } from './reset-clone.ts';
import { swapReset } from './reset-swap.ts';
import { changeRows } from './row-change.ts';
import { deleteRows } from './row-delete.ts';
import { diffRows } from './row-diff.ts';
import { listRows } from './row-list.ts';
import { updateCell } from './row-update.ts';
import { dropSnapshot } from './snapshot-drop.ts';
import { takeSnapshot } from './snapshot-take.ts';
import { describeTableDetails } from './table-describe.ts';
import { listTables } from './table-list.ts';

type Handlers = {
  [M in Method]: (host: Host, params: Params<M>, onProgress?: OnProgress) => Promise<MethodResult<M>>;
};

/** An operation that clones a database. An empty one has no source, so the project stands for it. */
const inTurn =
  <P extends { project_id: string; source: string | null }, R>(
    clone: (host: Host, params: P, onProgress?: OnProgress) => Promise<R>,
  ) =>
  async (host: Host, params: P, onProgress?: OnProgress): Promise<R> => {
    const end = await host.cloneTurns.begin(params.source ?? params.project_id);
    try {
      return await clone(host, params, onProgress);
    } finally {
      end();
    }
  };

/** One function per operation of the protocol. The link and the control tool call the same ones. */
const HANDLERS: Handlers = {
  'host.describe': describeHost,
  'host.inventory': takeInventory,
  'inventory.digest': digestInventory,
  'inventory.list': listInventory,
  'branch.prepare': prepareBranch,
  'branch.clone': inTurn(cloneBranch),
  'branch.finalize': finalizeBranch,
  'branch.prove': proveBranch,
  'branch.drop': dropBranch,
  'branch.keep': keepBranch,
  'project.size': sizeProject,
  'batch.prepare': prepareBatch,
  'batch.clone': inTurn(cloneBatchBranches),
  'batch.finalize': finalizeBatch,
  'batch.prove': proveBatch,
  'project.drop': dropProject,
  'access.apply': applyAccess,
  'snapshot.take': inTurn(takeSnapshot),
  'snapshot.drop': dropSnapshot,
  'reset.clone': inTurn(cloneForReset),
  'reset.swap': swapReset,
  'reset.cancel': cancelReset,
  'table.list': listTables,
  'table.describe': describeTableDetails,
  'row.list': listRows,
  'row.update': updateCell,
  'row.delete': deleteRows,
  'row.change': changeRows,
  'query.run': runQuery,
  'rehearsal.start': startRehearsal,
  'rehearsal.read': reportRehearsal,
  'rehearsal.finish': finishRehearsal,
  'branch.diff': diffBranch,
  'row.diff': diffRows,
};

/**
 * Runs an operation with parameters that the caller has parsed, as the link's dispatcher does.
 * @throws HostError for failures that the caller is to know; any other error is a fault of the agent
 */
export async function performOperation<M extends Method>(
  host: Host,
  method: M,
  params: Params<M>,
  onProgress?: OnProgress,
): Promise<MethodResult<M>> {
  try {
    return await HANDLERS[method](host, params, onProgress);
  } catch (error) {
    const failure = asHostError(error);
    const isFull = failure instanceof HostError && failure.code === 'HOST_FULL';
    // Deleted branches are kept only while there is room. The statements of tenants are not repeated.
    if (!isFull || 'concurrent' in OPERATIONS[method] || !(await makeRoom(host, failure).catch(() => false)))
      throw failure;
    return performOperation(host, method, params, onProgress);
  }
}

/**
 * Parses the parameters, as they come from a shell, and runs the operation.
 * @throws HostError INVALID_CALL, and as `performOperation`
 */
export async function runOperation<M extends Method>(
  host: Host,
  method: M,
  params: unknown,
  onProgress?: OnProgress,
): Promise<MethodResult<M>> {
  const parsed = OPERATIONS[method].params.safeParse(params);
  if (!parsed.success) {
    // Names the fields without their values: a value may be a secret.
    const problems = parsed.error.issues.map(({ path, message }) => `${path.join('.')}: ${message}`);
    throw new HostError('INVALID_CALL', problems.join('; '));
  }
  return performOperation(host, method, parsed.data as Params<M>, onProgress);
}
