import { eq, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { KEPT_MS, moves } from '../../../edge/database/move-schema.ts';
import { hosts, projects } from '../../../edge/database/schema.ts';
import { projectViews } from '../../../edge/tenancy/project-access.ts';
import { startRecords } from '../../support/records/records.ts';
import { insertTenant, NOW } from '../../support/records/tenant.ts';

const { db } = await startRecords();
await insertTenant(db);

const recoverableFrom = async () => {
  const [view] = await projectViews(db).where(eq(projects.id, 'p'));
  return view?.recoverableFrom;
};
const describeHost = (from: string | null) =>
  db
    .update(hosts)
    .set({ description: sql`json_set(coalesce(description, '{}'), '$.recoverable_from', ${from})` });

test('the window begins with the oldest copy of the host, or with the arrival of the project there', async () => {
  await db.delete(moves).where(eq(moves.projectId, 'p'));
  expect(await recoverableFrom()).toBeNull();
  await describeHost('2026-11-22T00:00:00.000000Z');
  expect(await recoverableFrom()).toBe('2026-11-22T00:00:00.000000Z');
  await db.insert(moves).values({
    projectId: 'p',
    jobId: crypto.randomUUID(),
    fromHostId: 'former',
    toHostId: 'h',
    phase: 'moved',
    keyId: '1',
    branches: [],
    keptUntil: new Date(NOW.getTime() + KEPT_MS),
    createdAt: NOW,
    updatedAt: NOW,
  });
  // Rounded up to a second.
  expect(await recoverableFrom()).toBe('2026-11-23T12:00:01.000000Z');
  await describeHost('2026-11-24T00:00:00.000000Z');
  expect(await recoverableFrom()).toBe('2026-11-24T00:00:00.000000Z');
  await describeHost(null);
  expect(await recoverableFrom()).toBeNull();
});
