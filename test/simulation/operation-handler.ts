import type { ActorRun } from './actor-run.ts';
import type { OperationKind, OperationOf } from './schedule.ts';

/** What happens concurrently with an operation. */
export interface Concurrent {
  /** Its resource may be deleted meanwhile. */
  deleted: boolean;
  /** Its user may move to another tenant meanwhile, and then no longer sees the resource. */
  moved: boolean;
}

/** Performs one operation and records in the model what its responses promise. */
export type OperationHandler<Kind extends OperationKind> = (
  run: ActorRun,
  operation: OperationOf<Kind>,
  concurrent: Concurrent,
) => Promise<void>;

/** @returns the project and branch if they are known to exist, otherwise null */
export function findBranch(run: ActorRun, { project, branch }: { project: string; branch: string }) {
  const owner = run.model.project(project);
  const found = owner?.branches.get(branch);
  return owner?.existence === 'there' && found?.existence === 'there' ? { owner, branch: found } : null;
}
