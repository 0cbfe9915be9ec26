import { asc, desc, sql } from 'drizzle-orm';
import { accessReads } from '../../../edge/access/send-access.ts';
import { hasBranchSlots } from '../../../edge/branches/branch-limit.ts';
import { knownBranchesOf } from '../../../edge/branches/branch-reference.ts';
import { type Database, openDatabase } from '../../../edge/database/database.ts';
import { projectBranches, projects } from '../../../edge/database/schema.ts';
import { readSubject } from '../../../edge/monitoring/storage-quota.ts';

/** A statement with its parameters. */
interface Sent {
  text: string;
  values: unknown[];
}

/** The statements that reach D1. Every result is empty. */
export async function statementsOf(work: (db: Database) => Promise<unknown>): Promise<Sent[]> {
  const seen: Sent[] = [];
  const prepare = (text: string) => {
    const sent: Sent = { text, values: [] };
    seen.push(sent);
    const statement = {
      bind: (...values: unknown[]) => {
        sent.values = values;
        return statement;
      },
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

const SETTINGS = { LEASED_BRANCH_LIMIT: 20 };
const COUNTED = { projectId: 'p', leaseSeconds: null };

/** What every request of a project reads, whatever the number of its deleted branches. */
export const READS: Record<string, (db: Database) => Promise<unknown>> = {
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
