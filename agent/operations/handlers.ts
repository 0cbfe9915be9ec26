import { type Method, type MethodResult, OPERATIONS, type Params } from '../../shared/protocol/operations.ts';
import { applyChange, settleChange } from '../changes/apply.ts';
import { type ChangeHost, rehearseChange } from '../changes/rehearse.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import type { ComparisonHost } from '../difference/sides.ts';
import { compareHosts } from '../moves/compare.ts';
import { admitMover, closeToClients, releaseMover } from '../moves/mover-login.ts';
import { type RecoveryHost, recoverDatabase } from '../past/recover.ts';
import { readTenant } from '../postgres/branches.ts';
import { listExtensions } from '../postgres/extensions.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import type { OnProgress } from '../process/progress.ts';
import { makeRoom, type RoomHost } from '../snapshots/make-room.ts';
import { dropSnapshot } from '../snapshots/snapshot-databases.ts';
import type { Spares } from '../snapshots/spares.ts';
import { runSql, type SqlHost } from '../sql/run-sql.ts';
import { admitStandby, type Membership } from '../standby/membership.ts';
import { cancelCopy, copySource } from '../transfer/copy-source.ts';
import { cancelCutOver, cutOver } from '../transfer/cut-over.ts';
import { followStatus, type WatchedHost } from '../transfer/follow-status.ts';
import { startFollowing, stopFollowing } from '../transfer/following.ts';
import { probeSource } from '../transfer/probe.ts';
import { resumeFollowing } from '../transfer/watch-followed.ts';
import type { TrialHost } from '../trials/run-trial.ts';
import { applyAccess } from './access.ts';
import {
  type BranchHost,
  cloneBranches,
  countSessions,
  dropBranch,
  finalizeBranches,
  keepBranch,
  prepareBranches,
  proveBranches,
} from './branch.ts';
import { planChange, readChangeSchema } from './change.ts';
import { cancelDiff, diffBranch, diffRows } from './difference.ts';
import {
  describeHost,
  digestInventory,
  type InventoryHost,
  type KnownInventory,
  listInventory,
  takeInventory,
} from './inventory.ts';
import { type CoveredSources, inspectMasking, maskSnapshot, previewMasking } from './masking.ts';
import { dropProject, sizeProject } from './project.ts';
import { runQuery } from './query.ts';
import { finishRehearsal, type RehearsalHost, reportRehearsal, startRehearsal } from './rehearsal.ts';
import { renameBranch } from './rename.ts';
import { cancelReset, cloneForReset, swapReset } from './reset.ts';
import { changeRows, listRows } from './row.ts';
import { takeSnapshot } from './snapshot.ts';
import { describeTableDetails, listTables } from './table.ts';
import { readTrial, tryStatements } from './trial.ts';

/** What the operations take together. */
interface OperationsHost
  extends BranchHost,
    ComparisonHost,
    ChangeHost,
    RehearsalHost,
    TrialHost,
    InventoryHost,
    RoomHost,
    RecoveryHost,
    WatchedHost,
    SqlHost {
  known: KnownInventory;
  cloneTurns: CloneTurns;
  covered: CoveredSources;
  spares: Spares;
  member: Membership;
}

type Handlers = {
  [M in Method]: (
    host: OperationsHost,
    params: Params<M>,
    onProgress?: OnProgress,
  ) => Promise<MethodResult<M>>;
};

/** An operation that clones a database. An empty one has no source, so the project stands for it. */
const inTurn =
  <P extends { project_id: string; source: string | null }, R>(
    clone: (host: OperationsHost, params: P, onProgress?: OnProgress) => Promise<R>,
  ) =>
  async (host: OperationsHost, params: P, onProgress?: OnProgress): Promise<R> => {
    const tenant = await readTenant(host.postgres, params.project_id);
    const end = await host.cloneTurns.begin(params.source ?? params.project_id, tenant);
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
  'host.extensions': ({ postgres }) => listExtensions(postgres),
  'inventory.digest': digestInventory,
  'inventory.list': listInventory,
  'branch.sessions': countSessions,
  'branch.prepare': prepareBranches,
  'branch.clone': inTurn(cloneBranches),
  'branch.finalize': finalizeBranches,
  'branch.prove': proveBranches,
  'branch.rename': renameBranch,
  'branch.drop': dropBranch,
  'branch.keep': keepBranch,
  'project.size': sizeProject,
  'project.drop': dropProject,
  'access.apply': applyAccess,
  'spares.read': (host, { project_id }) => host.spares.read(host, project_id),
  'snapshot.take': inTurn(takeSnapshot),
  'snapshot.mask': maskSnapshot,
  'masking.inspect': inspectMasking,
  'masking.preview': previewMasking,
  'snapshot.drop': dropSnapshot,
  'reset.clone': inTurn(cloneForReset),
  'reset.swap': swapReset,
  'reset.cancel': cancelReset,
  'table.list': listTables,
  'table.describe': describeTableDetails,
  'row.list': listRows,
  'row.change': changeRows,
  'query.run': runQuery,
  'sql.run': runSql,
  'sql.read': ({ sql }, { reply_id, offset }) => sql.replies.read(reply_id, offset),
  'rehearsal.start': startRehearsal,
  'rehearsal.read': reportRehearsal,
  'rehearsal.finish': finishRehearsal,
  'change.plan': planChange,
  'change.schema': readChangeSchema,
  'change.rehearse': inTurn(rehearseChange),
  'change.apply': applyChange,
  'change.settle': settleChange,
  'branch.diff': diffBranch,
  'row.diff': diffRows,
  'diff.cancel': cancelDiff,
  'try.run': tryStatements,
  'try.read': readTrial,
  'transfer.probe': probeSource,
  'transfer.copy': copySource,
  'transfer.cancel': cancelCopy,
  'past.recover': recoverDatabase,
  'bisect.start': ({ past, postgres }, params) => past.bisections.start(postgres, params),
  'bisect.step': ({ past }, params) => past.bisections.step(params),
  'bisect.end': ({ past }, params) => past.bisections.end(params),
  'follow.start': startFollowing,
  'follow.status': followStatus,
  'follow.resume': resumeFollowing,
  'follow.cutover': cutOver,
  'follow.cancel_cutover': cancelCutOver,
  'follow.stop': stopFollowing,
  'member.read': ({ member }) => member.read(),
  'member.apply': ({ member }, record) => member.apply(record),
  'standby.admit': admitStandby,
  'move.admit': admitMover,
  'move.close': closeToClients,
  'move.release': releaseMover,
  'move.compare': compareHosts,
};

/**
 * Runs an operation with parameters that the caller has parsed, as the link's dispatcher does.
 * @throws HostError for failures that the caller is to know; any other error is a fault of the agent
 */
export async function performOperation<M extends Method>(
  host: OperationsHost,
  method: M,
  params: Params<M>,
  onProgress?: OnProgress,
): Promise<MethodResult<M>> {
  try {
    host.member.require(method);
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
  host: OperationsHost,
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
