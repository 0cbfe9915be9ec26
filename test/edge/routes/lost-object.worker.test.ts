import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import type { ApiResponse } from '../../support/api.ts';
import { sharedTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';
import type { ProjectCoordinator } from '../../support/worker/trips-worker.ts';

let gateway: TripsGateway;
let project: string;

beforeAll(async () => {
  gateway = await sharedTripsGateway();
  project = (await gateway.makeThings()).project_id ?? '';
});

const loseNext = async (call: Parameters<ProjectCoordinator['loseNext']>[0]) =>
  gateway.coordinatorOf(project).loseNext(call);

/** @param retryAfter null where a repetition could take effect twice */
async function expectUnavailable(response: Promise<ApiResponse>, retryAfter: string | null): Promise<void> {
  const { status, headers, body } = await response;
  expect([status, body.error, headers.get('retry-after')]).toEqual([503, 'GATEWAY_BUSY', retryAfter]);
}

test.each(['monitor', 'linked'] as const)('a read whose %s is lost is repeated', async (call) => {
  const path = `/api/v1/projects/${project}/branches/main/metrics/summary`;
  await loseNext(call);
  expect(await gateway.api.get(path)).toMatchObject({ status: 200, body: { stale: false } });
});

test.each([
  { call: 'addRule', list: 'network-rules', make: { cidr: '192.0.2.1/32' } },
  { call: 'createBranches', list: 'branches', make: { branch_name: 'lost' } },
] as const)('a lost $call is a 503, whose repetition under the key makes one thing', async (lost) => {
  const path = `/api/v1/projects/${project}/${lost.list}`;
  const sizeOf = async () => (Object.values((await gateway.api.get(path)).body)[0] as unknown[]).length;
  const before = await sizeOf();
  const headers = { 'Idempotency-Key': randomUUID() };
  const post = () => gateway.api.call('POST', path, { body: lost.make, headers });
  await loseNext(lost.call);
  await expectUnavailable(post(), '5');
  const repeated = await post();
  expect([repeated.status, repeated.headers.get('idempotency-replayed')]).toEqual([201, 'true']);
  expect(await sizeOf()).toBe(before + 1);
});

test('a lost deletion is a 503 that no client repeats by itself, and a repetition finds nothing', async () => {
  const { id } = await gateway.api.branch(project, 'deleted');
  const remove = () => gateway.api.delete(`/api/v1/projects/${project}/branches/${id}`);
  await loseNext('deleteBranch');
  await expectUnavailable(remove(), null);
  expect((await remove()).status).toBe(404);
});
