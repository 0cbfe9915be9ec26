import { eq, sql } from 'drizzle-orm';
import { accessReads } from '../../../edge/access/send-access.ts';
import { ofBranch } from '../../../edge/branches/clone-source.ts';
import type { BranchRequest } from '../../../edge/branches/create-branches.ts';
import { newSnapshot } from '../../../edge/branches/snapshot.ts';
import { insertAllIf, openDatabase } from '../../../edge/database/database.ts';
import {
  auditEvents,
  hosts,
  projectBranches,
  projects,
  snapshots,
  users,
} from '../../../edge/database/schema.ts';
import type { BranchStatus } from '../../../shared/branch/branch-status.ts';
import { lifeOf } from '../../../shared/branch/lifespan.ts';
import type { BranchMeasurement } from '../../../shared/measurement.ts';
import { measurementOf } from '../records/sample-measurement.ts';
import type { MonitorGateway } from '../worker/monitor-gateway.ts';

const NOW = new Date();
export const MIB = 1024 * 1024;

const inBytes = (mib: Record<string, number>) =>
  Object.fromEntries(Object.entries(mib).map(([branchId, size]) => [branchId, size * MIB]));

/** A project in the database with a quota of 1000 MiB, which the test measures. */
export async function measuredProject(gateway: MonitorGateway) {
  const db = openDatabase(gateway.database);
  const id = crypto.randomUUID();
  const userId = crypto.randomUUID();
  const hostId = crypto.randomUUID();
  const timestamps = { createdAt: NOW, updatedAt: NOW };
  await db.batch([
    db.insert(users).values({
      id: userId,
      issuer: 'i',
      gid: userId,
      email: 'ada@example.com',
      role: 'owner',
      tenantId: 'acme',
      tenantSeenAt: NOW,
      ...timestamps,
    }),
    db.insert(hosts).values({
      id: hostId,
      name: hostId,
      dbHost: 'db.example.com',
      directPort: 5432,
      pooledPort: 6432,
      createdAt: NOW,
    }),
    db.insert(projects).values({
      id,
      name: 'Web shop',
      appKey: id,
      env: 'prod',
      status: 'active',
      storageQuotaGib: 1000 / 1024,
      hostId,
      createdBy: userId,
      tenantId: 'acme',
      ...timestamps,
    }),
  ]);
  const coordinator = gateway.coordinator(id);
  let measured = 0;

  const rowOf = (branchName: string, status: BranchStatus) => {
    const branchId = crypto.randomUUID();
    return {
      id: branchId,
      projectId: id,
      branchName,
      databaseName: `db_${branchId}`,
      sourceDatabase: 'template0',
      status,
      data: 'full' as const,
      keepTables: [],
      lifespan: '7d' as const,
      labels: {},
      isDefault: false,
      protected: false,
      blocks: [],
      connectionAttempts: 50,
      hasOwnAttempts: false,
      createdBy: userId,
      tenantId: 'acme',
      ...timestamps,
    };
  };

  return {
    ...coordinator,
    /** As the user who created the project. */
    stream: (
      wanted: { branchId: string | null; seconds: number; since: number | null },
      signal?: AbortSignal,
    ) => coordinator.stream(userId, wanted, signal),
    id,
    hostId,
    db,
    async branch(
      branchName: string,
      status: BranchStatus = 'active',
      leaseSeconds: number | null = null,
    ): Promise<string> {
      const row = { ...rowOf(branchName, status), leaseSeconds };
      await db.insert(projectBranches).values(row);
      return row.id;
    },
    /** Many concurrently. */
    branches: (count: number, status: BranchStatus) => {
      const rows = Array.from({ length: count }, (_, number) => rowOf(`${status}-${number}`, status));
      return db.batch([insertAllIf(db, projectBranches, rows, sql`true`)]);
    },
    /**
     * Reserves clones, all in parallel.
     * @param clones with a name, or named by their ID; `more`: what the request has besides
     * @param sizes as the host reads them just before, in MiB
     */
    async reserveClones(
      clones: {
        branchId: string;
        sourceId: string;
        branchName?: string;
        key?: string;
        more?: Partial<BranchRequest>;
      }[],
      sizes: Record<string, number> = {},
    ) {
      const [[row], branches] = await db.batch([
        db.select().from(projects).where(eq(projects.id, id)),
        db.select().from(projectBranches).where(eq(projectBranches.projectId, id)),
      ]);
      const actor = {
        userId,
        email: 'ada@example.com',
        tenantId: 'acme',
        ip: null,
        userAgent: null,
        requestId: 'r',
      };
      const requests = clones.map(
        ({ branchId, sourceId, branchName = branchId, key, more }): BranchRequest => {
          const source = branches.find((branch) => branch.id === sourceId);
          if (!row || !source) throw new Error('no such project or source');
          const request = { jobId: crypto.randomUUID(), project: row, source: ofBranch(source), actor };
          return {
            ...request,
            isBatch: false,
            branches: [{ id: branchId, name: branchName }],
            life: lifeOf({}),
            leaseSeconds: null,
            labels: {},
            attempts: null,
            allow: [],
            creatorCidr: null,
            onExists: 'fail',
            keyUse: key ? { tenantId: 'acme', userId, path: '/', key, bodyHash: 'h' } : null,
            ...more,
          };
        },
      );
      return coordinator.reserveBranches(requests, inBytes(sizes));
    },
    /** Sizes that the host reports between two measurements, in MiB. */
    resize: (sizes: Record<string, number>, hostId?: string) =>
      coordinator.recordSizes(inBytes(sizes), hostId),
    /** A checkpoint that is there. */
    async checkpoint(branchId: string): Promise<void> {
      const branches = await db.select().from(projectBranches).where(eq(projectBranches.id, branchId));
      for (const branch of branches) {
        const about = {
          id: crypto.randomUUID(),
          kind: 'checkpoint' as const,
          branch,
          number: 1,
          expiresAt: null,
        };
        await db.insert(snapshots).values({ ...newSnapshot(about, new Date()), status: 'ready' });
      }
    },
    setStatus: (branchId: string, status: BranchStatus) =>
      db.update(projectBranches).set({ status }).where(eq(projectBranches.id, branchId)),
    setQuota: (mib: number) =>
      db
        .update(projects)
        .set({ storageQuotaGib: mib / 1024 })
        .where(eq(projects.id, id)),
    /**
     * The next measurement: sizes in MiB, by branch id.
     * @param physical what they take of the disk together
     * @param files of each branch
     */
    measure: (
      sizes: Record<string, number>,
      hostId?: string,
      physical?: { mib: number; sizes: Record<string, number> },
      files = 0,
    ) => {
      measured += 1;
      const branches: Record<string, Partial<BranchMeasurement>> = Object.fromEntries(
        Object.entries(sizes).map(([branchId, mib]) => [
          branchId,
          { database_size_bytes: mib * MIB, file_count: files },
        ]),
      );
      const measurement = measurementOf(id, Date.now() + measured, branches);
      if (physical) measurement.physical = { bytes: physical.mib * MIB, sizes: inBytes(physical.sizes) };
      return coordinator.record(measurement, hostId);
    },
    /** The branches whose logins the next access closes. */
    closedBranches: async () => {
      const [, , closed] = await db.batch(accessReads(db, id));
      return closed.map((branch) => branch.id).sort();
    },
    row: async () => {
      const [row] = await db.select().from(projects).where(eq(projects.id, id));
      if (!row) throw new Error('the project is gone');
      return row;
    },
    audited: async () =>
      (await db.select().from(auditEvents).where(eq(auditEvents.projectId, id))).map(
        ({ name, actorId, tenantId, metadata }) => ({ name, actorId, tenantId, metadata }),
      ),
  };
}

export type MeasuredProject = Awaited<ReturnType<typeof measuredProject>>;
