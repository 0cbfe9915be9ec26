import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openDatabase } from '../../edge/database/database.ts';
import { hosts } from '../../edge/database/schema.ts';
import { eventually } from '../support/eventually.ts';
import { migratedD1 } from '../support/records/d1.ts';
import { insertProject } from '../support/records/records.ts';
import { startMailServer } from '../support/sign-in/mail-server.ts';
import { bundleFile, OBJECTS, SETTINGS, startWorker } from '../support/worker/worker.ts';

/** What the gateway does every six hours, whatever its hosts report. */

const ROOT = join(import.meta.dirname, '../..');
const FAR_PAST = new Date(0).toISOString();

let mails: Awaited<ReturnType<typeof startMailServer>>;
let worker: ReturnType<typeof startWorker>;

beforeAll(async () => {
  mails = await startMailServer();
  worker = startWorker(await bundleFile('gateway', join(ROOT, 'edge/worker.ts')), {
    d1Databases: ['DB'],
    durableObjects: OBJECTS,
    unsafeTriggerHandlers: true,
    bindings: {
      ...SETTINGS,
      MAIL_API_URL: mails.url,
      MAIL_API_KEY: 'key of the test',
      MAIL_FROM: 'branchgate@example.com',
      ALERT_EMAIL: 'team@example.com',
    },
  });
});
afterAll(async () => {
  await worker?.dispose();
  await mails?.stop();
});

test('every six hours, owners get a mail about projects without a drill for two weeks', async () => {
  const [, cron = ''] =
    /^crons = \["([^"]+)"\]$/m.exec(readFileSync(join(ROOT, 'wrangler.toml'), 'utf8')) ?? [];
  expect(cron).toMatch(/^\d+ \*\/6 \* \* \*$/);
  const { origin } = await worker.ready;
  const db = openDatabase(await migratedD1(worker));
  await insertProject(db, 'h');
  const runScheduled = async () => {
    const query = new URLSearchParams({ cron });
    const response = await fetch(`${origin}/cdn-cgi/local/scheduled?${query}`);
    expect([response.status, await response.text()]).toEqual([200, 'ok']);
  };
  await runScheduled();
  await db.update(hosts).set({ description: { drills_since: FAR_PAST } as never });
  await runScheduled();
  await eventually(async () => expect(mails.posted).toHaveLength(2));
  const about = mails.posted.map(({ body: { to, text } }) => [to, text.includes('two weeks')]);
  expect(about.toSorted()).toEqual([
    ['e', true],
    ['team@example.com', true],
  ]);
  // The same occasion is mailed once.
  await runScheduled();
  expect(mails.posted).toHaveLength(2);
});
