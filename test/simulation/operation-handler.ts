import { randomUUID } from 'node:crypto';
import { type ApiResponse, FROM_LOOPBACK } from '../support/api.ts';
import type { ActorRun } from './actor-run.ts';
import type { Operation, OperationKind, OperationOf } from './schedule.ts';

/** What happens concurrently with an operation. */
export interface Concurrent {
  /** Its resource may be deleted meanwhile. */
  deleted: boolean;
  /** Its user may move to another tenant meanwhile, and then no longer sees the resource. */
  moved: boolean;
  /** Its project may move to another host meanwhile. */
  moving: boolean;
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

export const keyed = () => ({ ...FROM_LOOPBACK, 'Idempotency-Key': randomUUID() });

export const idOf = ({ id }: { id: string }) => id;

/**
 * Checks that one key creates one resource: every response has the same ids, also that of a further request.
 */
export async function sameUnderKey<B>(
  run: ActorRun,
  operation: Operation,
  responses: ApiResponse<B>[],
  request: () => Promise<ApiResponse<B>>,
  idsOf: (body: B) => string,
): Promise<B | null> {
  const [first] = responses;
  if (!first) return null;
  const ids = new Set(responses.map(({ body }) => idsOf(body)));
  if (operation.copies > 1 && operation.persists) {
    const { response } = await run.sendOnce(operation, request);
    if (response && response.status < 300) ids.add(idsOf(response.body));
  }
  if (ids.size > 1) run.report(`${operation.kind}: ${ids.size} resources under one key`);
  return first.body;
}
