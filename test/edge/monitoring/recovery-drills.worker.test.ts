import { expect, test } from 'vitest';
import { drillsOf, RecoveryDrills, recordDrill, toDrills } from '../../../edge/monitoring/recovery-drills.ts';
import { DRILL_OVERDUE_MS, type DrillReport } from '../../../shared/protocol/recovery-drill.ts';
import { startRecords } from '../../support/records/records.ts';
import { insertTenant, NOW } from '../../support/records/tenant.ts';

const { db } = await startRecords();
await insertTenant(db);

const moment = (before: number) => new Date(NOW.getTime() - before).toISOString().replace('Z', '000Z');
const report = (before: number, problem: DrillReport['problem'] = null): DrillReport => ({
  project_id: 'p',
  drill_id: crypto.randomUUID(),
  drilled_at: moment(before),
  at: moment(before + 1000),
  duration_ms: 1234,
  tables: 3,
  rows: 300,
  problem,
});
const PROJECT: { recoverableFrom: string | null; createdAt: Date } = {
  recoverableFrom: moment(86_400_000),
  createdAt: new Date(0),
};

test('a report is recorded once, however often the host repeats it, and without a value of a row', async () => {
  const first = report(1000, 'log_unreadable');
  for (let n = 0; n < 3; n += 1) await recordDrill(db, first);
  const { drills } = RecoveryDrills.parse(toDrills(PROJECT, await drillsOf(db, 'p'), NOW));
  const { project_id: _, drill_id: id, ...known } = first;
  expect(drills).toEqual([{ id, ...known, passed: false }]);
  expect(await drillsOf(db, 'another')).toEqual([]);
});

test('drills are overdue two weeks after the last one that has passed, where the host keeps a past', () => {
  const rows = (...reports: DrillReport[]) =>
    reports.map(({ drill_id: id, ...metadata }) => ({ id, metadata }));
  const isOverdue = (project: typeof PROJECT, ...reports: DrillReport[]) =>
    toDrills(project, rows(...reports), NOW).overdue;
  expect(isOverdue(PROJECT)).toBe(true);
  expect(isOverdue({ ...PROJECT, createdAt: NOW })).toBe(false);
  expect(isOverdue(PROJECT, report(DRILL_OVERDUE_MS - 1))).toBe(false);
  expect(isOverdue(PROJECT, report(0, 'content_differs'), report(DRILL_OVERDUE_MS + 1))).toBe(true);
  expect(isOverdue({ ...PROJECT, recoverableFrom: null })).toBe(false);
});
