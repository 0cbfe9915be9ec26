import { eq } from 'drizzle-orm';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { auditEvents } from '../../../edge/database/schema.ts';
import { startTripsGateway, type TripsGateway } from '../../support/worker/trips-gateway.ts';

const WRITES = 6;
const VIEWS = 14;

let gateway: TripsGateway;

beforeAll(async () => {
  gateway = await startTripsGateway(0, { LIMIT_WRITES_PER_MINUTE: WRITES });
});
afterAll(() => gateway?.stop());

test('views of credentials fill the audit log no faster than writes do, and other reads continue', async () => {
  const { id, main_branch } = await gateway.api.project('Shop');
  const path = `/api/v1/projects/${id}/branches/${main_branch.id}`;
  const statuses = [];
  for (let n = 0; n < VIEWS; n++) statuses.push((await gateway.api.get(`${path}/credentials`)).status);
  // Another minute may begin once.
  const shown = statuses.filter((status) => status === 200).length;
  expect(statuses.filter((status) => status === 429).length).toBe(VIEWS - shown);
  const rows = await gateway.db.select().from(auditEvents).where(eq(auditEvents.branchId, main_branch.id));
  expect(rows.filter(({ name }) => name === 'branch.credentials.viewed')).toHaveLength(shown);
  expect(shown).toBeGreaterThanOrEqual(WRITES);
  expect(shown).toBeLessThan(VIEWS);
  expect((await gateway.api.get(path)).status).toBe(200);
});
