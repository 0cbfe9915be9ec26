import type { Failure } from '../../shared/failures.ts';
import type { ProjectSizes } from '../../shared/measurement.ts';
import { evaluateStorage, quotaBytes, type StorageState } from '../../shared/project/storage-quota.ts';
import { fail, type Result } from '../../shared/result.ts';
import { type KeyUse, unlessInFlight } from '../api/idempotency-key.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { storeLifespan } from '../branches/change-lifespan.ts';
import type { Database } from '../database/database.ts';
import type { JobRow } from '../jobs/job-store.ts';
import { Slots } from '../jobs/slots.ts';
import { logSpecifiedEvent } from '../log.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { LifespanChange, StorageStatus } from '../projects/coordinator-rpc.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import type { Settings } from '../settings.ts';
import type { CloneSource } from '../snapshots/clone-source.ts';
import type { LastMeasurement } from './measurement-store.ts';
import { EVENTS_OF_STATE, type StorageEventName, storageEvent, storageMail } from './storage-events.ts';
import { readSubject, type StorageSubject, storeStorageUsage } from './storage-usage.ts';

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
  lastMeasurement: () => LastMeasurement | null;
}

/** Storage key of the events already sent in this episode: an episode ends when the project is `normal`. */
const SENT_EVENTS = 'told_of_episode';
/** Storage key of the sizes that no measurement contains yet, by branch ID. */
const KNOWN_SIZES = 'known_sizes';
/** A size of a database. */
interface KnownSize {
  bytes: number;
  /** When the host reported it (Unix milliseconds); null for a clone, which has the size of its source until then. */
  at: number | null;
}
/** Whether no measurement contains the branch since. */
const isNews = (last: LastMeasurement | null, branchId: string, { at }: KnownSize): boolean =>
  !last || !(branchId in last.branches) || (at ?? 0) > last.receivedAt;

/** With physical accounting: how long a measurement of the disk is used, and what a new clone takes at most. */
const PHYSICAL_FOR_MS = 20 * 60_000;
const PHYSICAL_CLONE_BYTES = 2 ** 20;
/** Concurrent changes of the project can make an evaluation outdated; the next measurement repeats it in any case. */
const ATTEMPTS = 3;

/**
 * The storage quota of one project (specification 3.2): evaluates the usage after each measurement and each change of
 * the quota, and admits a clone only if it fits. Uses the two storage keys above; usage and state are in D1.
 */
export class StorageQuota {
  readonly #options: StorageQuotaOptions;
  /** Admissions run one after another, so that each sees the records of the one before. */
  readonly #admissions = new Slots(1);

  constructor(options: StorageQuotaOptions) {
    this.#options = options;
  }

  /**
   * Evaluates the project by its last measurement and sends each event once an episode. Sent events are stored apart
   * from the state: if the object is lost in between, the next measurement sends them.
   * @param subject as it was just read
   * @returns null without an active project or any known size
   */
  async evaluate(projectId: string, subject?: StorageSubject | null): Promise<StorageStatus | null> {
    const { db } = this.#options;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const current = (attempt === 0 && subject) || (await readSubject(db, projectId));
      if (!current || !this.#isSized()) return null;
      const { project } = current;
      const now = new Date();
      const used = this.#used(current, ['active']);
      const state = evaluateStorage(project.storageState, used, quotaBytes(project.storageQuotaGib));
      if (!(await storeStorageUsage(db, project, { used, state }, now))) continue;
      this.#sendEvents(project, { used, state }, now);
      return { hostId: project.hostId, used, state };
    }
    return null;
  }

  /**
   * Makes a reservation if what it clones fits: the sum of the usage, of clones without a measurement and of the source's
   * size for each branch must not exceed the quota.
   * @param sizes as the host just read them
   */
  async reserveWithinQuota(
    { projectId, keyUse, source, branchIds, replaced }: Admission,
    sizes: ProjectSizes['sizes'],
    reserve: () => Promise<Result<JobRow, Failure>>,
  ): Promise<Result<JobRow, Failure>> {
    const { db } = this.#options;
    const release = await this.#admissions.take();
    try {
      const subject = await readSubject(db, projectId);
      if (subject) this.recordSizes(subject, sizes);
      const sizeOf = this.#readSizes();
      const bytes = source.snapshot?.sizeBytes ?? sizeOf(source.branchId ?? '');
      const freed = replaced === undefined ? 0 : sizeOf(replaced);
      const needed = this.#physical()
        ? PHYSICAL_CLONE_BYTES * branchIds.length
        : bytes * branchIds.length - freed;
      const excess = subject && this.#excess(subject, needed);
      const outcome = excess ? fail(excess) : await reserve();
      const at = replaced === undefined ? null : Date.now();
      const added = branchIds.map((id) => [id, { bytes, at }]);
      if (subject && outcome.ok) this.#storeSizes(subject, Object.fromEntries(added));
      return await unlessInFlight(db, keyUse, outcome);
    } finally {
      release();
    }
  }

  /** Changes a lifespan. An expired branch does not count against the quota, so it must fit to become active again. */
  async extendWithinQuota(change: LifespanChange): Promise<Result<BranchRow, Failure>> {
    const { db, settings } = this.#options;
    const { id: branchId, projectId } = change.branch;
    const release = await this.#admissions.take();
    try {
      const subject = await readSubject(db, projectId);
      const isExpired = subject?.branches.some(({ id, status }) => id === branchId && status === 'expired');
      const needed = this.#physical() ? PHYSICAL_CLONE_BYTES : this.#readSizes()(branchId);
      const excess = subject && isExpired ? this.#excess(subject, needed) : null;
      return excess ? fail(excess) : await storeLifespan(db, settings(), change, new Date());
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

  #excess(subject: StorageSubject, needed: number): Failure | null {
    const limit = quotaBytes(subject.project.storageQuotaGib);
    const used = this.#used(subject, ['creating', 'active']);
    if (needed <= 0 || used + needed <= limit) return null;
    const fields = { used_bytes: used, needed_bytes: needed, limit_bytes: limit };
    return { code: 'STORAGE_QUOTA_EXCEEDED', fields };
  }

  #used({ branches }: StorageSubject, statuses: StorageSubject['branches'][number]['status'][]): number {
    const sizeOf = this.#readSizes();
    const sizes = branches
      .filter(({ status }) => statuses.includes(status))
      .map(({ id }) => [id, sizeOf(id)] as const);
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
    const { settings, lastMeasurement } = this.#options;
    if (settings().STORAGE_ACCOUNTING !== 'physical') return null;
    const physical = lastMeasurement()?.physical;
    return physical && Date.now() - physical.receivedAt < PHYSICAL_FOR_MS ? physical : null;
  }

  /** Reads what is stored, once for all branches. @returns the size of a branch by its ID; 0 if none is known */
  #readSizes(): (branchId: string) => number {
    const last = this.#options.lastMeasurement();
    const knownSizes = this.#knownSizes();
    return (branchId) => {
      const known = knownSizes[branchId];
      if (known && isNews(last, branchId, known)) return known.bytes;
      return last?.branches[branchId]?.database_size_bytes ?? 0;
    };
  }

  #isSized(): boolean {
    return this.#options.lastMeasurement() !== null || Object.keys(this.#knownSizes()).length > 0;
  }

  #sendEvents(project: ProjectRow, { used, state }: { used: number; state: StorageState }, now: Date): void {
    const { storage, settings, outbox } = this.#options;
    const sent = storage.kv.get<StorageEventName[]>(SENT_EVENTS) ?? [];
    if (state === 'normal') {
      if (sent.length > 0) storage.kv.delete(SENT_EVENTS);
      return;
    }
    const unsent = EVENTS_OF_STATE[state].filter((name) => !sent.includes(name));
    if (unsent.length === 0) return;
    // The e-mails and the record that they were sent are one write, because nothing is awaited between them.
    storage.kv.put(SENT_EVENTS, [...sent, ...unsent]);
    for (const name of unsent) {
      const { event, ...fields } = storageEvent(name, project, used, now);
      logSpecifiedEvent(event, fields);
      const { ALERT_EMAIL } = settings();
      if (!ALERT_EMAIL || !sendsMail(settings())) continue;
      outbox.put(storageMail({ event, ...fields }, project.name, ALERT_EMAIL), now.getTime());
    }
  }

  #knownSizes(): Record<string, KnownSize> {
    return this.#options.storage.kv.get<Record<string, KnownSize>>(KNOWN_SIZES) ?? {};
  }

  /** Also removes what a measurement contains by now, and branches that have no database any more. */
  #storeSizes({ branches }: StorageSubject, sizes: Record<string, KnownSize>): void {
    const existing = new Set(branches.map(({ id }) => id));
    const last = this.#options.lastMeasurement();
    const left = Object.entries(this.#knownSizes()).filter(
      ([id, size]) => existing.has(id) && isNews(last, id, size),
    );
    this.#options.storage.kv.put(KNOWN_SIZES, { ...Object.fromEntries(left), ...sizes });
  }
}
