import { setTimeout as sleep } from 'node:timers/promises';
import type { Credentials } from '../support/api.ts';
import { type MoveBody, pathOf } from '../support/stack/two-hosts.ts';
import type { ActorRun } from './actor-run.ts';
import { codeOf, send } from './client.ts';
import type { ModelBranch, ModelProject } from './model.ts';
import type { Concurrent, OperationHandler } from './operation-handler.ts';
import { MAIN, type OperationOf } from './schedule.ts';
import { Sessions } from './sessions.ts';

/** Other work of the project ends within this time, unless a fault holds it up. */
const BUSY_FOR_MS = 15_000;
const POLL_EVERY_MS = 200;

/** The project is on the host already, moves already, has other work, or has snapshots. */
const REFUSALS = ['VALIDATION_FAILED', 'PROJECT_MOVING', 'PROJECT_BUSY', 'SNAPSHOTS_STAY'];

/** The project moves to the other host, and everything that its user knows of it stays as it is. */
export const moveProject: OperationHandler<'move_project'> = async (run, operation, concurrent) => {
  const project = run.model.project(operation.project);
  if (project?.existence !== 'there') return;
  const sessions = await Sessions.open(project.branches.get(MAIN));
  const known = [...project.branches.values()].map((branch) => ({
    branch,
    credentials: branch.credentials,
    rotations: branch.rotations.most,
  }));
  const hasMoved = (await begin(run, operation, project, concurrent)) && (await end(run, operation, project));
  run.expectEnd('move_project', sessions, hasMoved ? 'now' : 'never');
  if (!hasMoved) return;
  project.moves.least += 1;
  if (operation.drops_snapshots) {
    for (const snapshot of project.snapshots.values()) snapshot.existence = 'gone';
    for (const branch of project.branches.values())
      if (branch.existence === 'gone') branch.isForgotten = true;
  }
  for (const { branch, credentials, rotations } of known)
    if (branch.existence === 'there' && branch.rotations.most === rotations)
      await checkPasswords(run, project, branch, credentials);
};

/** Asks for the move to the host that the project is not on. @returns whether it moves */
async function begin(
  run: ActorRun,
  operation: OperationOf<'move_project'>,
  project: ModelProject,
  concurrent: Concurrent,
): Promise<boolean> {
  const { operator, hosts } = run.context;
  const { drops_snapshots: drop_snapshots } = operation;
  const deadline = Date.now() + BUSY_FOR_MS;
  for (let n = 0; ; n++) {
    const host_id = hosts[n % hosts.length]?.id;
    const outcome = await run.sendOnce(operation, () =>
      operator.post<MoveBody>(pathOf(project.id), { host_id, drop_snapshots }),
    );
    project.moves.most += outcome.tries;
    const permitted = REFUSALS;
    const [begun] = run.responsesWithStatus(operation, [outcome], 202, { ...concurrent, permitted });
    if (begun) return true;
    const code = outcome.response && codeOf(outcome.response);
    // An earlier attempt has begun it.
    if (code === 'PROJECT_MOVING') return true;
    const isOver = Date.now() > deadline || run.context.signal.aborted;
    if (isOver || (code !== 'VALIDATION_FAILED' && code !== 'PROJECT_BUSY')) return false;
    if (code === 'PROJECT_BUSY') await sleep(POLL_EVERY_MS);
  }
}

/** Waits for the end of the move. @returns whether the project has moved */
async function end(
  run: ActorRun,
  { kind }: OperationOf<'move_project'>,
  { id }: ModelProject,
): Promise<boolean> {
  const { operator, signal } = run.context;
  for (;;) {
    const { response } = await send(() => operator.get<MoveBody>(pathOf(id)), { persists: true, signal });
    // The project was deleted.
    if (response?.status === 404) return false;
    const status = response?.body.job.status;
    if (status === 'succeeded') return true;
    if (status === 'failed') return false;
    if (signal.aborted) {
      run.report(`${kind}: project ${id} has not moved in time`);
      return false;
    }
    await sleep(POLL_EVERY_MS);
  }
}

/** Everything but the address. */
export const withoutHost = (text: string): string => {
  const url = new URL(text);
  url.hostname = 'host';
  url.port = '';
  return url.href;
};

async function checkPasswords(
  run: ActorRun,
  project: ModelProject,
  branch: ModelBranch,
  before: Credentials | null,
): Promise<void> {
  branch.credentials = null;
  const now = await run.credentials(project, branch);
  if (before && now && withoutHost(before.database_url) !== withoutHost(now.database_url))
    run.report(`move_project: branch ${branch.id} has other passwords than before`);
}
