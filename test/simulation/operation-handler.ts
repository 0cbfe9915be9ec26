import type { ActorRun } from './actor-run.ts';
import type { OperationKind, OperationOf } from './schedule.ts';

/** What goes on beside an operation. */
export interface Concurrent {
  /** What it is about may be deleted meanwhile. */
  deleted: boolean;
  /** Its user may move to another tenant meanwhile, and then what it is about is not there for it any more. */
  moved: boolean;
}

/** Does one operation and notes what its answers promise. */
export type OperationHandler<Kind extends OperationKind> = (
  run: ActorRun,
  operation: OperationOf<Kind>,
  beside: Concurrent,
) => Promise<void>;

/** The project and branch, if they are known to be there. Otherwise there is nothing to do. */
export function findBranch(run: ActorRun, { project, branch }: { project: string; branch: string }) {
  const owner = run.model.project(project);
  const found = owner?.branches.get(branch);
  return owner?.existence === 'there' && found?.existence === 'there' ? { owner, branch: found } : null;
}
