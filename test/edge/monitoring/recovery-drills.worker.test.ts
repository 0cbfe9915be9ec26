import { eq, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { hosts, projects, users } from '../../../edge/database/schema.ts';
import type { Mail } from '../../../edge/mail/mail.ts';
import {
  drillsOf,
  mailAboutDrills,
  RecoveryDrills,
  recordDrill,
  toDrills,
} from '../../../edge/monitoring/recovery-drills.ts';
import { DRILL_OVERDUE_MS, type DrillReport } from '../../../shared/protocol/recovery-drill.ts';
import { startRecords } from '../../support/records/records.ts';
import { insertTenant, NOW } from '../../support/records/tenant.ts';
import { SETTINGS } from '../../support/worker/worker.ts';

const { db, binding } = await startRecords();
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
const PROJECT: { drillsSince: string | null; createdAt: Date } = {
  drillsSince: new Date(0).toISOString(),
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

test('drills are overdue two weeks after the last one that has passed, where the host runs them', () => {
  const rows = (...reports: DrillReport[]) =>
    reports.map(({ drill_id: id, ...metadata }) => ({ id, metadata }));
  const isOverdue = (project: typeof PROJECT, ...reports: DrillReport[]) =>
    toDrills(project, rows(...reports), NOW).overdue;
  expect(isOverdue(PROJECT)).toBe(true);
  expect(isOverdue({ ...PROJECT, createdAt: NOW })).toBe(false);
  expect(isOverdue(PROJECT, report(DRILL_OVERDUE_MS - 1))).toBe(false);
  expect(isOverdue(PROJECT, report(0, 'content_differs'), report(DRILL_OVERDUE_MS + 1))).toBe(true);
  expect(isOverdue({ ...PROJECT, drillsSince: null })).toBe(false);
  expect(isOverdue({ ...PROJECT, drillsSince: NOW.toISOString() })).toBe(false);
});

/** Mails, and what each call is about, in the order of the calls. */
let sent: { about: string; to: string[]; text: string }[] = [];
const env = {
  ...SETTINGS,
  DB: binding,
  MAIL_API_URL: 'https://mail.example.com',
  ALERT_EMAIL: 'ops@example.com',
};

const mailsAt = async (now: Date, projectId?: string) => {
  sent = [];
  const send = async (_: string, mails: Mail[], about: string) =>
    void sent.push({ about, to: mails.map(({ to }) => to), text: mails[0]?.text ?? '' });
  await mailAboutDrills(env, send, now, projectId);
  return sent;
};
const runDrillsSince = (since: string | null) =>
  db.update(hosts).set({ description: sql`json_set('{}', '$.drills_since', ${since})` });

test('the creator and the operator get a mail about a failed drill and about overdue ones, until one has passed', async () => {
  await db
    .update(projects)
    .set({ createdAt: new Date(0) })
    .where(eq(projects.id, 'p'));
  await runDrillsSince(null);
  expect(await mailsAt(NOW)).toEqual([]);
  // The last one has failed.
  await runDrillsSince(NOW.toISOString());
  const [failed, ...others] = await mailsAt(NOW);
  expect(others).toEqual([]);
  expect(failed?.to).toContain('ops@example.com');
  expect(failed?.to).toHaveLength(2);
  expect(failed?.text).toContain('The log since then does not lead to the time.');
  expect(failed?.text).not.toContain('two weeks');
  expect(await mailsAt(NOW, 'p')).toEqual([failed]);
  expect(await mailsAt(NOW, 'another')).toEqual([]);
  // None has passed for two weeks either, which is another occasion.
  await runDrillsSince(new Date(0).toISOString());
  const [both] = await mailsAt(NOW);
  expect(both?.text).toMatch(/log since then[\s\S]*two weeks/);
  expect(both?.about).not.toBe(failed?.about);
  await recordDrill(db, report(0));
  expect(await mailsAt(NOW)).toEqual([]);
  const later = new Date(NOW.getTime() + DRILL_OVERDUE_MS + 1);
  const [overdue] = await mailsAt(later);
  expect(overdue?.text).toContain('two weeks');
  expect(overdue?.text).not.toContain('failed');
  // The creator has another tenant since.
  await db.update(users).set({ tenantId: 'elsewhere' });
  expect((await mailsAt(later)).map(({ to }) => to)).toEqual([['ops@example.com']]);
});
