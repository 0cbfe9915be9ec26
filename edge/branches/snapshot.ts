import { and, desc, eq, inArray, ne, or, type SQL, sql } from 'drizzle-orm';
import { z } from 'zod';
import { AUTOMATIC, SNAPSHOT_KINDS, Spares, storedSpares } from '../../shared/branch/snapshot.ts';
import type { Failure } from '../../shared/failures.ts';
import { ok, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent } from '../audit/audit-event.ts';
import type { Principal } from '../authentication/principal.ts';
import type { Actor, BranchContent } from '../database/column-types.ts';
import { inActiveProject } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type BranchRow,
  projectBranches,
  type SnapshotRow,
  snapshots,
} from '../database/schema.ts';
import { missing } from '../missing.ts';
import { whereMatches } from '../tenancy/branch-pattern.ts';
import { CONTENT_FIELDS, contentOf, toContentResponse } from './branch.ts';

const Bytes = z.int().nonnegative();
const Timestamp = z.iso.datetime();

export const Snapshot = z
  .strictObject({
    id: z.uuid(),
    name: z.string().nullable().meta({ example: 'before-migration' }),
    branch_id: z
      .uuid()
      .meta({ description: 'The branch that it was taken of, which may be deleted by now.' }),
    kind: z.enum(SNAPSHOT_KINDS).meta({
      description:
        '`safety`: what the branch held before a reset. `masked`: made for branches with masked data, and deleted after a day. `checkpoint`: what an undo goes back to; in the list of checkpoints only.',
      example: 'manual',
    }),
    independent: z.boolean().meta({
      description:
        'It shares no block with the branch. The newest snapshot of `main` becomes independent in the background, if the host has room.',
    }),
    size_bytes: Bytes.meta({ example: 8_388_608 }),
    own_bytes: Bytes.nullable().meta({
      description: 'What its deletion frees, as last measured. Null: not measured.',
      example: 212_992,
    }),
    shared_bytes: Bytes.nullable().meta({
      description: 'What it shares with other databases of the project. Null: not measured.',
      example: 8_175_616,
    }),
    spares: Spares,
    ...CONTENT_FIELDS,
    taken_at: Timestamp,
    expires_at: Timestamp.nullable().meta({ description: 'Null: it is kept until it is deleted.' }),
  })
  .meta({ id: 'Snapshot' });

export const toSnapshotResponse = (row: SnapshotRow): z.output<typeof Snapshot> => ({
  id: row.id,
  name: row.name,
  branch_id: row.branchId,
  kind: row.kind === 'deleted' || row.kind === 'recovered' ? 'safety' : row.kind,
  independent: row.independent,
  size_bytes: row.sizeBytes,
  own_bytes: row.ownBytes,
  shared_bytes: row.sharedBytes,
  spares: row.spares ?? AUTOMATIC,
  ...toContentResponse(row),
  taken_at: row.takenAt.toISOString(),
  expires_at: row.expiresAt?.toISOString() ?? null,
});

export const newSnapshot = (
  about: Pick<SnapshotRow, 'id' | 'kind' | 'expiresAt'> & {
    branch: BranchRow;
    name?: string | null;
    number?: number | null;
    /** Default: that of the branch. */
    content?: BranchContent;
  },
  now: Date,
): SnapshotRow => ({
  id: about.id,
  projectId: about.branch.projectId,
  branchId: about.branch.id,
  branchName: about.branch.branchName,
  name: about.name ?? null,
  kind: about.kind,
  number: about.number ?? null,
  status: 'making',
  independent: false,
  sizeBytes: 0,
  ownBytes: null,
  sharedBytes: null,
  spares: null,
  ...contentOf(about.content ?? about.branch),
  rules: [],
  takenAt: now,
  expiresAt: about.expiresAt,
  tenantId: about.branch.tenantId,
  createdAt: now,
});

type Caller = Pick<Principal, 'machine'>;

const ready = (projectId: string) =>
  and(eq(snapshots.projectId, projectId), eq(snapshots.status, 'ready'), ne(snapshots.kind, 'deleted'));

const ofMain = sql`exists (select 1 from ${projectBranches} where id = ${snapshots.branchId} and is_default)`;

/** Snapshots of branches in the caller's reach. `main` is in no pattern. */
const ofPattern = ({ machine }: Caller): SQL | undefined =>
  machine?.branchPattern == null
    ? undefined
    : and(sql`not ${ofMain}`, whereMatches(machine.branchPattern, snapshots.branchName));

/** The project's snapshots that the caller may see and delete. Checkpoints have a list of their own. */
export const snapshotsOf = (projectId: string, caller: Caller): SQL | undefined =>
  and(ready(projectId), ne(snapshots.kind, 'checkpoint'), ofPattern(caller));

/** With the checkpoints, which take room too. */
export const storedSnapshotsOf = (projectId: string, caller: Caller): SQL | undefined =>
  and(ready(projectId), ofPattern(caller));

/** Snapshots that the caller may clone: the same, and those of `main`. */
const cloneable = (projectId: string, caller: Caller): SQL | undefined => {
  const pattern = ofPattern(caller);
  return and(ready(projectId), pattern && or(ofMain, pattern));
};

/** The snapshot with this id; no row if the caller may not clone it. */
export const cloneableSnapshot = (db: Database, projectId: string, id: string, caller: Caller) =>
  db
    .select()
    .from(snapshots)
    .where(and(cloneable(projectId, caller), eq(snapshots.id, id)));

/** The newest snapshot of the branch that its users or a schedule have taken. */
export const latestSnapshot = (db: Database, projectId: string, branch: SQL | undefined, caller: Caller) =>
  db
    .select()
    .from(snapshots)
    .where(
      and(
        cloneable(projectId, caller),
        inArray(snapshots.kind, ['manual', 'schedule']),
        // One that was masked has other data than the branch, and is used by its id.
        sql`${snapshots.data} = (select data from ${projectBranches} where id = ${snapshots.branchId})`,
        sql`exists (select 1 from ${projectBranches} where ${and(
          eq(projectBranches.id, snapshots.branchId),
          branch,
        )})`,
      ),
    )
    .orderBy(desc(snapshots.takenAt), desc(snapshots.id))
    .limit(1);

export interface SnapshotChange {
  snapshot: SnapshotRow;
  spares: Spares;
  actor: Actor;
}

/** Audits the change; the host gets it with the access of the project. @returns or NOT_FOUND, PROJECT_NOT_ACTIVE */
export async function changeSnapshot(
  db: Database,
  { snapshot, spares, actor }: SnapshotChange,
  now: Date,
): Promise<Result<SnapshotRow, Failure>> {
  const { id, projectId, branchId, name } = snapshot;
  const theSnapshot = eq(snapshots.id, id);
  const metadata = { snapshot_id: id, name, from: snapshot.spares ?? AUTOMATIC, to: spares };
  const event = auditEvent('snapshot.spares.changed', actor, { projectId, branchId, metadata }, now);
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(snapshots)
        .set({ spares: storedSpares(spares) })
        .where(and(theSnapshot, isAllowed)),
    require: [
      ...inActiveProject(projectId, actor.tenantId),
      [isThere(snapshots, and(theSnapshot, ready(projectId))), missing('snapshot')],
    ],
    rest: (isAllowed) => [
      insertIf(db, auditEvents, event, isAllowed),
      nextAccessRevision(db, projectId, isAllowed),
    ],
    returns: db.select().from(snapshots).where(theSnapshot),
  });
  return written.ok ? ok({ ...snapshot, ...written.value.at(0) }) : written;
}
