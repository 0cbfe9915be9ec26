import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Method } from '../../shared/protocol/operations.ts';
import type { ApiResponse, BranchBody } from '../support/api.ts';
import { firstByDay } from '../support/nightly.ts';
import { FaultStage, insist } from '../support/stack/fault-stage.ts';
import { afterReply } from '../support/stack/moments.ts';

/** Long enough for a faulty host to begin a second clone. */
const SECOND_CLONE_MS = 300;

let stage: FaultStage;
beforeAll(async () => {
  stage = await FaultStage.open();
});
afterAll(() => stage?.close());

/** A creation whose clone PostgreSQL continues when the agent or the gateway dies. */
async function slowCreation(send: typeof insist<BranchBody>) {
  const project = await stage.api.project('Orphaned');
  const path = `/api/v1/projects/${project.id}/branches`;
  const headers = { 'Idempotency-Key': randomUUID() };
  const begunBefore = stage.databasesBegun;
  const release = await stage.holdCopies();
  const created = send(() => stage.api.post<BranchBody>(path, { branch_name: 'orphaned' }, headers));
  await stage.copyHeld();
  return {
    created,
    begun: () => stage.databasesBegun - begunBefore,
    branches: async () => (await stage.api.get<{ branches: BranchBody[] }>(path)).body.branches,
    remove: (id = '') => stage.api.delete(`${path}/${id}`),
    /**
     * Releases PostgreSQL after the gateway has called one of these and the host has had time for a second
     * clone.
     */
    releaseAfter: (...methods: Method[]) =>
      Promise.race(methods.map((method) => stage.nextCall(method)))
        .then(() => sleep(SECOND_CLONE_MS))
        .then(release)
        .then(() => null),
  };
}

test.each(firstByDay(1, ['agent', 'gateway'] as const))(
  'a clone that outlives the %s is adopted',
  async (victim) => {
    const { created, begun, branches, releaseAfter } = await slowCreation(insist);

    const [, answer] = await stage.crash([victim], () => [releaseAfter('branch.clone'), created]);

    expect(answer).toMatchObject({ status: 201 });
    expect(begun()).toBe(1);
    expect((await branches()).map(({ id }) => id)).toEqual([expect.any(String), answer?.body.id]);
  },
);

test.each(firstByDay(1, ['gateway', 'agent'] as const))(
  'a clone that outlives the %s goes with its branch',
  async (victim) => {
    // The client sends it once: a repeated request would create the branch again.
    const { created, begun, branches, remove, releaseAfter } = await slowCreation((request) => request());
    created.catch(() => {});
    const [, branch] = await branches();

    const [, answer] = await stage.crash([victim], () => [
      // The creation may be resumed before the deletion arrives, which then waits for it.
      releaseAfter('branch.drop', 'branch.clone'),
      insist(() => remove(branch?.id)),
    ]);

    expect(answer).toMatchObject({ status: 202 });
    expect(begun()).toBe(1);
    expect(await branches()).toHaveLength(1);
  },
);

test('a deletion overtakes a creation: neither its branch nor its event remains', async () => {
  const project = await stage.api.project('Overtaken');
  const path = `/api/v1/projects/${project.id}/branches`;
  let created = Promise.resolve<ApiResponse<BranchBody> | null>(null);
  await stage.reach(afterReply('prove', 'branch.prove'), () => {
    created = stage.api.post<BranchBody>(path, { branch_name: 'overtaken' });
    return created;
  });
  const { body } = await stage.api.get<{ branches: BranchBody[] }>(path);
  const deletion = await stage.api.delete(`${path}/${body.branches[1]?.id}`);

  const [answer] = await stage.crash([], () => [created]);

  expect(deletion).toMatchObject({ status: 202 });
  expect(answer).toMatchObject({ status: 404 });
});
