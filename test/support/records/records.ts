import { eq } from 'drizzle-orm';
import { type Database, inOneBatch, openDatabase } from '../../../edge/database/database.ts';
import { eventOutbox } from '../../../edge/database/event-schema.ts';
import {
  auditEvents,
  hosts,
  jobs,
  type networkRules,
  projectBranches,
  projects,
  users,
} from '../../../edge/database/schema.ts';
import { newJob } from '../../../edge/jobs/job-store.ts';
import { type RecordedBranch, readRecords } from '../../../edge/reconciliation/differences.ts';
import type { BranchStatus } from '../../../shared/branch/branch-status.ts';
import { startD1 } from './d1.ts';

const EARLIER = new Date('2026-01-01T00:00:00Z');
const times = { createdAt: EARLIER, updatedAt: EARLIER };

/** The user of these records, at work. */
export const ACTOR = {
  userId: 'u',
  email: 'e',
  tenantId: 't',
  ip: null,
  userAgent: null,
  requestId: 'r',
} as const;

/** A real D1 with the project on a host `h`. */
export async function startRecords() {
  const binding = await startD1();
  const db = openDatabase(binding);
  await insertProject(db, 'h');
  return { binding, db };
}

/** Records of a project on the host, which nobody has made. @param hostId registered here if it is not yet */
export const insertProject = (db: Database, hostId: string, id = 'p'): Promise<void> =>
  insertProjects(db, hostId, [{ id }]);

/** As `insertProject`, for several. */
export async function insertProjects(
  db: Database,
  hostId: string,
  about: { id: string; tenantId?: string }[],
): Promise<void> {
  const user = { id: 'u', issuer: 'i', gid: 'g', email: 'e', role: 'owner', tenantId: 't' };
  const host = { name: hostId, dbHost: 'db.example.com', directPort: 5432, pooledPort: 6432 };
  const project = {
    name: 'P',
    env: 'prod',
    status: 'active',
    hostId,
    createdBy: 'u',
    tenantId: 't',
  } as const;
  const rows = about.map(({ id, ...more }) => ({ ...project, id, appKey: id, ...times, ...more }));
  await inOneBatch(db, [
    db
      .insert(users)
      .values({ ...user, tenantSeenAt: EARLIER, ...times })
      .onConflictDoNothing(),
    db
      .insert(hosts)
      .values({ id: hostId, ...host, createdAt: EARLIER })
      .onConflictDoNothing(),
    ...rows.map((row) => db.insert(projects).values(row)),
  ]);
}

/** Record of a branch of that project. */
export async function insertBranch(
  db: Database,
  status: BranchStatus,
  expiresAt: Date | null = null,
  projectId = 'p',
): Promise<RecordedBranch> {
  const row = branchRow(status, expiresAt, projectId);
  await db.insert(projectBranches).values(row);
  return { id: row.id, projectId, tenantId: row.tenantId, status, databaseName: row.databaseName };
}

/** As `insertBranch` inserts it. */
export function branchRow(
  status: BranchStatus,
  expiresAt: Date | null = null,
  projectId = 'p',
): typeof projectBranches.$inferInsert & { id: string } {
  const id = crypto.randomUUID();
  const names = { branchName: id, databaseName: `db_${id}`, sourceDatabase: 'db_p_prod' };
  const about = { projectId, tenantId: 't', status, lifespan: '7d', expiresAt, createdBy: 'u' } as const;
  return { id, ...about, ...names, ...times };
}

/** A rule of all branches of project `p`, with a network of its own or the name of a list. */
export const ruleRow = (cidr: string, more: Partial<typeof networkRules.$inferSelect> = {}) => ({
  id: crypto.randomUUID(),
  projectId: 'p',
  branchId: null,
  cidr,
  description: null,
  source: 'manual' as const,
  via: 'all' as const,
  revision: 0,
  createdBy: 'u',
  tenantId: 't',
  createdAt: EARLIER,
  expiresAt: null,
  listVersion: 0,
  ...more,
});

/** A deletion of the project that is over: the trace that projects leave. */
export async function insertDeletion(db: Database, hostId: string, projectId: string): Promise<void> {
  const about = { id: crypto.randomUUID(), projectId, hostId, actor: ACTOR };
  const job = newJob('project.delete', { branchId: null }, about, EARLIER);
  await db.insert(jobs).values({ ...job, status: 'succeeded' });
}

/** Whether the coordinator of the project has work, besides events that are not published. */
export async function isStale(db: Database, now: Date): Promise<boolean | undefined> {
  await db.delete(eventOutbox);
  return (await readRecords(db, 'h', now)).projects[0]?.stale;
}

/** What the records say of the branch, and the names of its audit events. */
export async function readBranch(db: Database, { id }: RecordedBranch) {
  const [row] = await db.select().from(projectBranches).where(eq(projectBranches.id, id));
  const events = await db.select().from(auditEvents).where(eq(auditEvents.branchId, id));
  return { status: row?.status, events: events.map(({ name }) => name) };
}

/** D1 as it is for a request that another one overtakes: `change` runs once, before this batch of it. */
export function overtaken(binding: D1Database, change: () => PromiseLike<unknown>, batch = 1): D1Database {
  let batches = 0;
  let overtaking: PromiseLike<unknown> | null = null;
  return new Proxy(binding, {
    get(target, property) {
      const value: unknown = Reflect.get(target, property);
      if (typeof value !== 'function') return value;
      if (property !== 'batch') return value.bind(target);
      return async (...given: unknown[]) => {
        batches += 1;
        if (batches >= batch) {
          overtaking ??= change();
          await overtaking;
        }
        return Reflect.apply(value, target, given);
      };
    },
  });
}
