import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { expect, test } from 'vitest';
import { ROOT } from '../../../dev/build/repository.ts';
import { referencedBranch } from '../../../edge/branches/branch-reference.ts';
import { drillsOf } from '../../../edge/monitoring/recovery-drills.ts';
import { READS, statementsOf } from '../../support/records/project-reads.ts';

const sqlite = new DatabaseSync(':memory:');
for (const file of globSync('edge/database/migrations/*.sql', { cwd: ROOT }).sort())
  sqlite.exec(readFileSync(join(ROOT, file), 'utf8'));

const planOf = (text: string) =>
  (sqlite.prepare(`explain query plan ${text}`).all() as { detail: string }[]).map(({ detail }) => detail);

test.each(Object.entries(READS))('%s reads the index of live branches', async (_, work) => {
  const plans = (await statementsOf(work))
    .map(({ text }) => text)
    // A kept branch that was deleted has credentials too, which are sent when it is restored.
    .filter((text) => text.includes('project_branches') && !text.includes('branch_credentials'))
    .map(planOf)
    .filter((plan) => plan.some((line) => /\bproject_branches\b/.test(line) && !line.includes('(id=?)')));
  expect(plans.length).toBeGreaterThan(0);
  for (const plan of plans) expect(plan.join('\n')).toContain('INDEX branches_live');
});

test('a branch that is named is found without the deleted ones', async () => {
  const [sent] = await statementsOf(async (db) => referencedBranch(db, 'p', 'pr-1', {}));
  expect(planOf(sent?.text ?? '').join('\n')).toMatch(
    /INDEX branches_live_name \(project_id=\? AND branch_name=\?\)/,
  );
});

test('the drills of a project are found without its other events', async () => {
  const [sent] = await statementsOf(async (db) => drillsOf(db, 'p'));
  expect(planOf(sent?.text ?? '')).toEqual([expect.stringContaining('INDEX audit_drills (project_id=?)')]);
});

test('the deletion of a row does not look for its children in all rows', () => {
  expect(planOf("select 1 from project_branches where parent_branch_id = 'b'").join('\n')).toContain(
    'branches_by_parent',
  );
});
