import { join } from 'node:path';
import { expect, test } from 'vitest';
import { applyMigrations, BEFORE_BASELINE } from '../../../dev/gateway/migrations.ts';
import { startD1 } from '../../support/records/d1.ts';

const FOLDER = join(import.meta.dirname, '../../../edge/database/migrations');

test('a database of before version 1.0.0 is refused, and nothing changes', async () => {
  const d1 = await startD1();
  await applyMigrations(d1, FOLDER);
  await d1.exec("UPDATE d1_migrations SET name = '0000_initial.sql' WHERE name = '0000_baseline.sql'");
  await d1.exec('DROP TABLE webhooks');
  await expect(applyMigrations(d1, FOLDER)).rejects.toThrow(BEFORE_BASELINE);
  const { results } = await d1.prepare("SELECT name FROM sqlite_master WHERE name = 'webhooks'").run();
  expect(results).toEqual([]);
});
