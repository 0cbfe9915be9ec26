import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import { asc, desc, sql } from 'drizzle-orm';
import { expect, test } from 'vitest';
import { ROOT } from '../../../dev/build/repository.ts';
import { accessReads } from '../../../edge/access/send-access.ts';
import { hasBranchSlots } from '../../../edge/branches/branch-limit.ts';
import { knownBranchesOf, referencedBranch } from '../../../edge/branches/branch-reference.ts';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { projectBranches, projects } from '../../../edge/database/schema.ts';
import { drillsOf } from '../../../edge/monitoring/recovery-drills.ts';
import { readSubject } from '../../../edge/monitoring/storage-quota.ts';

const sqlite = new DatabaseSync(':memory:');
for (const file of globSync('edge/database/migrations/*.sql', { cwd: ROOT }).sort())
  sqlite.exec(readFileSync(join(ROOT, file), 'utf8'));

/** The statements that reach D1. Every result is empty. */
async function statementsOf(work: (db: Database) => Promise<unknown>): Promise<string[]> {
  const seen: string[] = [];
  const prepare = (text: string) => {
    seen.push(text);
    const statement = {
      bind: () => statement,
      all: async () => ({ results: [] }),
      raw: async () => [],
      run: async () => ({ results: [] }),
    };
    return statement;
  };
  const batch = async (statements: unknown[]) => statements.map(() => ({ results: [] }));
  await work(openDatabase({ prepare, batch } as unknown as D1Database)).catch(() => {});
  return seen;
}

const planOf = (text: string) =>
  (sqlite.prepare(`explain query plan ${text}`).all() as { detail: string }[]).map(({ detail }) => detail);

const SETTINGS = { LEASED_BRANCH_LIMIT: 20 };
const COUNTED = { projectId: 'p', leaseSeconds: null };

/** What every request of a project reads, whatever the number of its deleted branches. */
const READS: Record<string, (db: Database) => Promise<unknown>> = {
  'the list of branches': (db) =>
    db
      .select()
      .from(projectBranches)
      .where(knownBranchesOf('p', {}))
      .orderBy(desc(projectBranches.isDefault), asc(projectBranches.createdAt), asc(projectBranches.id)),
  'the quota': (db) => readSubject(db, 'p'),
  'the access of a project': (db) => db.batch(accessReads(db, 'p')),
  'the limit of branches': (db) =>
    db.select({ fits: sql`${hasBranchSlots(COUNTED, SETTINGS, 1)[0]}` }).from(projects),
};

test.each(Object.entries(READS))('%s reads the index of live branches', async (_, work) => {
  const plans = (await statementsOf(work))
    // A kept branch that was deleted has credentials too, which are sent when it is restored.
    .filter((text) => text.includes('project_branches') && !text.includes('branch_credentials'))
    .map(planOf)
    .filter((plan) => plan.some((line) => /\bproject_branches\b/.test(line) && !line.includes('(id=?)')));
  expect(plans.length).toBeGreaterThan(0);
  for (const plan of plans) expect(plan.join('\n')).toContain('INDEX branches_live');
});

test('a branch that is named is found without the deleted ones', async () => {
  const [text = ''] = await statementsOf(async (db) => referencedBranch(db, 'p', 'pr-1', {}));
  expect(planOf(text).join('\n')).toMatch(/INDEX branches_live_name \(project_id=\? AND branch_name=\?\)/);
});

test('the drills of a project are found without its other events', async () => {
  const [text = ''] = await statementsOf(async (db) => drillsOf(db, 'p'));
  expect(planOf(text)).toEqual([expect.stringContaining('INDEX audit_drills (project_id=?)')]);
});

test('the deletion of a row does not look for its children in all rows', () => {
  expect(planOf("select 1 from project_branches where parent_branch_id = 'b'").join('\n')).toContain(
    'branches_by_parent',
  );
});
