import { and, eq, inArray } from 'drizzle-orm';
import { COUNTED_STATUSES } from '../../shared/branch/branch-status.ts';
import type { Failure } from '../../shared/failures.ts';
import { PROJECT_FILES_MAX } from '../../shared/limits.ts';
import type { ProjectSizes } from '../../shared/measurement.ts';
import {
  ACCESS_OF_STATE,
  evaluateStorage,
  quotaBytes,
  type StorageState,
} from '../../shared/project/storage-quota.ts';
import { fail, type Result } from '../../shared/result.ts';
import { nextAccessRevision } from '../access/send-access.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { CloneSource } from '../branches/clone-source.ts';
import { isLive } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import {
  auditEvents,
  type JobRow,
  type ProjectRow,
  projectBranches,
  projects,
  snapshots,
} from '../database/schema.ts';
import { type KeyUse, unlessInFlight } from '../idempotency/idempotency-key.ts';
import { Turns } from '../jobs/turns.ts';
import { logSpecifiedEvent } from '../log.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { Settings } from '../settings.ts';
import { filesOf, type LastMeasurement, type MeasurementStore } from './measurements.ts';
import { EVENTS_OF_STATE, type StorageEventName, storageEvent, storageMail } from './storage-events.ts';

/** A project with its branches that count against its quota: those that count against its branch limit (specification 8). */
export interface StorageSubject {
  project: ProjectRow;
  branches: { id: string; branchName: string }[];
  /** For each checkpoint, the ID of its branch. */
  checkpoints: { branchId: string }[];
}

/** Reads the project; null if it is not active. */
export async function readSubject(db: Database, projectId: string): Promise<StorageSubject | null> {
  const [[project], branches, checkpoints] = await db.batch([
    db
      .select()
      .from(projects)
      .where(and(eq(projects.id, projectId), eq(projects.status, 'active'))),
    db
      .select({ id: projectBranches.id, branchName: projectBranches.branchName })
      .from(projectBranches)
      .where(
        and(
          eq(projectBranches.projectId, projectId),
          isLive,
          inArray(projectBranches.status, COUNTED_STATUSES),
        ),
      ),
    db
      .select({ branchId: snapshots.branchId })
      .from(snapshots)
      .where(and(eq(snapshots.projectId, projectId), eq(snapshots.kind, 'checkpoint'))),
  ]);
  return project ? { project, branches, checkpoints } : null;
}

/** Smaller changes of the usage are not written to D1: one write a minute and project would be too many. */
const NOTABLE_BYTES = 1024 * 1024;

/**
 * Writes usage and state if they have changed notably. A change of the state is audited, and a change of what
 * the logins may do gets a new access revision, all in one batch.
 * @param project as it was read: the result is written only if the project has not changed since
 * @returns false if the project has changed
 */
async function storeStorageUsage(
  db: Database,
  project: ProjectRow,
  { used, state }: { used: number; state: StorageState },
  now: Date,
): Promise<boolean> {
  const { id, tenantId, storageState: from, storageUsedBytes, storageQuotaGib } = project;
  const isFirst = project.storageMeasuredAt === null;
  if (state === from && !isFirst && Math.abs(used - storageUsedBytes) < NOTABLE_BYTES) return true;
  const asRead = and(
    eq(projects.id, id),
    eq(projects.status, 'active'),
    eq(projects.tenantId, tenantId),
    eq(projects.storageState, from),
    eq(projects.storageQuotaGib, storageQuotaGib),
  );
  const metadata = { from, to: state, used_bytes: used, limit_bytes: quotaBytes(storageQuotaGib) };
  const about = { projectId: id, metadata };
  const event = auditEvent('project.storage_state.changed', noActor(tenantId), about, now);
  const changesAccess = ACCESS_OF_STATE[state] !== ACCESS_OF_STATE[from];
  const usage = { storageUsedBytes: used, storageState: state, storageMeasuredAt: now };
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(projects)
        .set(usage)
        .where(and(eq(projects.id, id), isAllowed)),
    require: [[isThere(projects, asRead), 'NOT_FOUND']],
    rest: (isAllowed) => [
      ...(state === from ? [] : [insertIf(db, auditEvents, event, isAllowed)]),
      ...(changesAccess ? [nextAccessRevision(db, id, isAllowed)] : []),
    ],
  });
  return written.ok;
}

/** Databases that are to be made from one source. */
interface Admission {
  projectId: string;
  keyUse: KeyUse | null;
  source: CloneSource;
  branchIds: readonly string[];
  /** The branch whose database is replaced. */
  replaced?: string;
}

interface StorageQuotaOptions {
  db: Database;
  storage: DurableObjectStorage;
  settings: () => Settings;
  outbox: Outbox;
  /** Counts a mail about a project of this tenant. @returns whether it may be sent */
  mayAlert: (tenantId: string) => Promise<boolean>;
  measurements: Pick<MeasurementStore, 'load' | 'last'>;
}

/** Storage key of the events already sent in this episode: an episode ends when the project is `normal`. */
const SENT_EVENTS = 'told_of_episode';
/** Storage key of the sizes that no measurement contains yet, by branch ID. */
const KNOWN_SIZES = 'known_sizes';
/** A size of a database. */
interface KnownSize {
  bytes: number;
  /**
   * When the host reported it (Unix milliseconds); null for a clone, which has the size of its source until
   * then.
   */
  at: number | null;
}
/** Whether no measurement contains the branch since. */
const isNews = (last: LastMeasurement | null, branchId: string, { at }: KnownSize): boolean =>
  !last || !(branchId in last.branches) || (at ?? 0) > last.receivedAt;

/**
 * With physical accounting: how long a measurement of the disk is used, and what a new clone takes at most.
 */
const PHYSICAL_FOR_MS = 20 * 60_000;
const PHYSICAL_CLONE_BYTES = 2 ** 20;
/**
 * Concurrent changes of the project can make an evaluation outdated; the next measurement repeats it in any
 * case.
 */
const ATTEMPTS = 3;

/**
 * The storage quota of one project (specification 3.2): evaluates the usage after each measurement and each
 * change of the quota, and admits a clone only if it fits. Uses the two storage keys above; usage and state
 * are in D1.
 */
export class StorageQuota {
  readonly #options: StorageQuotaOptions;
  /** Admissions run one after another, so that each sees the records of the one before. */
  readonly #admissions = new Turns(1);

  constructor(options: StorageQuotaOptions) {
    this.#options = options;
  }

  /**
   * Evaluates the project by its last measurement and sends each event once an episode. Sent events are
   * stored apart from the state: if the object is lost in between, the next measurement sends them.
   * @param subject as it was just read
   * @returns null without an active project or any known size
   */
  async evaluate(projectId: string, subject?: StorageSubject | null): Promise<StorageStatus | null> {
    const { db, measurements } = this.#options;
    await measurements.load();
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const current = (attempt === 0 && subject) || (await readSubject(db, projectId));
      if (!current || !this.#isSized()) return null;
      const { project } = current;
      const now = new Date();
      const used = this.#used(current);
      const state = evaluateStorage(project.storageState, used, quotaBytes(project.storageQuotaGib));
      if (!(await storeStorageUsage(db, project, { used, state }, now))) continue;
      await this.#sendEvents(project, { used, state }, now);
      return { hostId: project.hostId, used, state };
    }
    return null;
  }

  /**
   * Makes a reservation if what it clones fits: the sum of the usage, of clones without a measurement and of
   * the source's size for each branch must not exceed the quota.
   * @param sizes as the host just read them
   */
  async reserveWithinQuota(
    { projectId, keyUse, source, branchIds, replaced }: Admission,
    sizes: ProjectSizes['sizes'],
    reserve: () => Promise<Result<JobRow, Failure>>,
  ): Promise<Result<JobRow, Failure>> {
    const { db, measurements } = this.#options;
    const release = await this.#admissions.take();
    try {
      const [subject] = await Promise.all([readSubject(db, projectId), measurements.load()]);
      if (subject) this.recordSizes(subject, sizes);
      const sizeOf = this.#readSizes();
      const bytes = source.snapshot?.sizeBytes ?? sizeOf(source.branchId ?? '');
      const freed = replaced === undefined ? 0 : sizeOf(replaced);
      const needed = this.#physical()
        ? PHYSICAL_CLONE_BYTES * branchIds.length
        : bytes * branchIds.length - freed;
      const files = filesOf(measurements.last(), [source.branchId ?? '']);
      const excess =
        subject && (this.#excess(subject, needed) ?? this.#fileExcess(subject, files * branchIds.length));
      const outcome = excess ? fail(excess) : await reserve();
      const at = replaced === undefined ? null : Date.now();
      const added = branchIds.map((id) => [id, { bytes, at }]);
      if (subject && outcome.ok) this.#storeSizes(subject, Object.fromEntries(added));
      return await unlessInFlight(db, keyUse, outcome);
    } finally {
      release();
    }
  }

  /** Stores sizes that the host just read. They count until the next measurement. */
  recordSizes(subject: StorageSubject, sizes: ProjectSizes['sizes']): void {
    const at = Date.now();
    const read = subject.branches.flatMap(({ id }) => {
      const bytes = sizes[id];
      return bytes === undefined ? [] : [[id, { bytes, at }] as const];
    });
    if (read.length > 0) this.#storeSizes(subject, Object.fromEntries(read));
  }

  /** FILE_LIMIT_REACHED if the project has no room for the files of another copy of the branch. */
  async fileExcess(projectId: string, branchId: string): Promise<Failure | null> {
    const { db, measurements } = this.#options;
    const [subject] = await Promise.all([readSubject(db, projectId), measurements.load()]);
    return subject && this.#fileExcess(subject, filesOf(measurements.last(), [branchId]));
  }

  /** What a new branch counts, whatever its source; null: as much as its source. */
  get cloneBytes(): number | null {
    return this.#physical() ? PHYSICAL_CLONE_BYTES : null;
  }

  #excess(subject: StorageSubject, needed: number): Failure | null {
    const limit = quotaBytes(subject.project.storageQuotaGib);
    const used = this.#used(subject);
    if (needed <= 0 || used + needed <= limit) return null;
    const fields = { used_bytes: used, needed_bytes: needed, limit_bytes: limit };
    return { code: 'STORAGE_QUOTA_EXCEEDED', fields };
  }

  /** By the last measurement: a project has far fewer, and the host bounds it within seconds. */
  #fileExcess({ branches, checkpoints }: StorageSubject, needed: number): Failure | null {
    // A checkpoint has about as many files as its branch.
    const ids = [...branches.map(({ id }) => id), ...checkpoints.map(({ branchId }) => branchId)];
    const used = filesOf(this.#options.measurements.last(), ids);
    if (needed === 0 || used + needed <= PROJECT_FILES_MAX) return null;
    const fields = { used_files: used, needed_files: needed, limit_files: PROJECT_FILES_MAX };
    return { code: 'FILE_LIMIT_REACHED', fields };
  }

  #used({ branches }: StorageSubject): number {
    const sizeOf = this.#readSizes();
    const sizes = branches.map(({ id }) => [id, sizeOf(id)] as const);
    const logical = sizes.reduce((sum, [, size]) => sum + size, 0);
    const physical = this.#physical();
    if (!physical) return logical;
    // What was written since then; a branch that is missing there is a new clone.
    const grown = sizes.reduce(
      (sum, [id, size]) => sum + Math.max(0, size - (physical.sizes[id] ?? size)),
      0,
    );
    return Math.min(logical, physical.bytes + grown);
  }

  /** What the branches take of the disk; null if their sizes count. */
  #physical(): LastMeasurement['physical'] | null {
    const { settings, measurements } = this.#options;
    if (settings().STORAGE_ACCOUNTING !== 'physical') return null;
    const physical = measurements.last()?.physical;
    return physical && Date.now() - physical.receivedAt < PHYSICAL_FOR_MS ? physical : null;
  }

  /**
   * Reads what is stored, once for all branches.
   * @returns the size of a branch by its ID; 0 if none is known
   */
  #readSizes(): (branchId: string) => number {
    const sizes = this.sizesOf(this.#options.measurements.last());
    return (branchId) => sizes[branchId] ?? 0;
  }

  /** The newest known size of each branch, in bytes by ID: those of clones before a measurement, too. */
  sizesOf(last: LastMeasurement | null): Record<string, number> {
    const measured = Object.entries(last?.branches ?? {}).map(
      ([id, { database_size_bytes: bytes }]) => [id, bytes] as const,
    );
    const news = Object.entries(this.#knownSizes())
      .filter(([id, known]) => isNews(last, id, known))
      .map(([id, { bytes }]) => [id, bytes] as const);
    return Object.fromEntries([...measured, ...news]);
  }

  #isSized(): boolean {
    return this.#options.measurements.last() !== null || Object.keys(this.#knownSizes()).length > 0;
  }

  async #sendEvents(
    project: ProjectRow,
    { used, state }: { used: number; state: StorageState },
    now: Date,
  ): Promise<void> {
    const { storage, settings, outbox, mayAlert } = this.#options;
    const sent = () => storage.kv.get<StorageEventName[]>(SENT_EVENTS) ?? [];
    if (state === 'normal') {
      if (sent().length > 0) storage.kv.delete(SENT_EVENTS);
      return;
    }
    const unsent = () => EVENTS_OF_STATE[state].filter((name) => !sent().includes(name));
    const { ALERT_EMAIL } = settings();
    const mayMail = new Set<StorageEventName>();
    if (ALERT_EMAIL && sendsMail(settings()))
      for (const name of unsent()) if (await mayAlert(project.tenantId)) mayMail.add(name);
    // The e-mails and the record that they were sent are one write, because nothing is awaited from here on.
    const names = unsent();
    if (names.length === 0) return;
    storage.kv.put(SENT_EVENTS, [...sent(), ...names]);
    for (const name of names) {
      const { event, ...fields } = storageEvent(name, project, used, now);
      logSpecifiedEvent(event, fields);
      if (!ALERT_EMAIL || !mayMail.has(name)) continue;
      outbox.put(storageMail({ event, ...fields }, project.name, ALERT_EMAIL), now.getTime());
    }
  }

  #knownSizes(): Record<string, KnownSize> {
    return this.#options.storage.kv.get<Record<string, KnownSize>>(KNOWN_SIZES) ?? {};
  }

  /** Stores sizes, and removes what a measurement contains by now, and branches that have no database any more. */
  #storeSizes({ branches }: StorageSubject, sizes: Record<string, KnownSize>): void {
    const existing = new Set(branches.map(({ id }) => id));
    const last = this.#options.measurements.last();
    const left = Object.entries(this.#knownSizes()).filter(
      ([id, size]) => existing.has(id) && isNews(last, id, size),
    );
    this.#options.storage.kv.put(KNOWN_SIZES, { ...Object.fromEntries(left), ...sizes });
  }
}

/** Storage use of a project. */
export interface StorageStatus {
  hostId: string;
  /** Bytes of its branches together. */
  used: number;
  state: StorageState;
}
