import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Credentials } from '../../support/api.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

let gateway: TripsGateway;

beforeAll(async () => {
  gateway = await startTripsGateway(0);
});
afterAll(() => gateway?.stop());

test('a pending rotation is not returned under its idempotency key either', async () => {
  const { id, main_branch } = await gateway.api.project('Shop');
  const setLinked = await gateway.moveProject(id);
  const path = `/api/v1/projects/${id}/branches/${main_branch.id}/credentials`;
  const before = await gateway.api.credentials(id, main_branch.id);
  const key = { 'Idempotency-Key': randomUUID() };
  const rotate = () => gateway.api.call<Credentials>('POST', `${path}/rotate`, { headers: key });

  await setLinked(true, false);
  for (let times = 0; times < 2; times++)
    expect(await rotate()).toMatchObject({ status: 503, body: { error: 'HOST_UNAVAILABLE' } });
  await setLinked(true);
  const rotated = await rotate();
  expect(rotated.status).toBe(200);
  expect(rotated.body.database_url).not.toBe(before.database_url);
  expect((await rotate()).body).toEqual(rotated.body);
});
