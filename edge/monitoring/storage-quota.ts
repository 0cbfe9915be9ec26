import type { Failure } from '../../shared/failures.ts';
import { evaluateStorage, quotaBytes, type StorageState } from '../../shared/project/storage-quota.ts';
import { fail, type Result } from '../../shared/result.ts';
import type { BranchRow } from '../branches/branch-resource.ts';
import { storeLifespan } from '../branches/change-lifespan.ts';
import { reserveBranches } from '../branches/reserve-branches.ts';
import type { Database } from '../database/database.ts';
import type { JobRow } from '../jobs/job-store.ts';
import { Slots } from '../jobs/slots.ts';
import { logEvent } from '../log.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { BranchRequest, LifespanChange, StorageStatus } from '../projects/coordinator-rpc.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import type { Settings } from '../settings.ts';
import type { LastMeasurement } from './measurement-store.ts';
import { EVENTS_OF_STATE, type StorageEventName, storageEvent, storageMail } from './storage-events.ts';
import { readSubject, type StorageSubject, storeStorageUsage } from './storage-usage.ts';

interface StorageQuotaOptions {
  db: Database;
  storage: DurableObjectStorage;
  settings: () => Settings;
  outbox: Outbox;
  lastMeasurement: () => LastMeasurement | null;
}

/** Storage key of the events already sent in this episode: an episode ends when the project is `normal`. */
const SENT_EVENTS = 'told_of_episode';
/** Storage key of the bytes of clones without a measurement, by branch ID: the size of their source. */
const UNMEASURED = 'unmeasured';
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
   * @returns null without an active project or a measurement
   */
  async evaluate(projectId: string, subject?: StorageSubject | null): Promise<StorageStatus | null> {
    const { db } = this.#options;
    for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
      const current = (attempt === 0 && subject) || (await readSubject(db, projectId));
      if (!current || !this.#options.lastMeasurement()) return null;
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
   * Reserves the branches if their clones fit: the sum of the usage, of clones without a measurement and of the source's
   * size for each branch must not exceed the quota.
   */
  async reserveWithinQuota(request: BranchRequest): Promise<Result<JobRow, Failure>> {
    const { db, settings } = this.#options;
    const release = await this.#admissions.take();
    try {
      const subject = await readSubject(db, request.project.id);
      const size = this.#sizeOf(request.source.id);
      const excess = subject && this.#excess(subject, size * request.branches.length);
      if (excess) return fail(excess);
      const reserved = await reserveBranches(db, settings(), request, new Date());
      if (subject && reserved.ok) this.#storeUnmeasured(subject, request.branches, size);
      return reserved;
    } finally {
      release();
    }
  }

  /** Changes a lifespan. An expired branch does not count against the quota, so it must fit to become active again. */
  async extendWithinQuota(change: LifespanChange): Promise<Result<BranchRow, Failure>> {
    const { db } = this.#options;
    const { id: branchId, projectId } = change.branch;
    const release = await this.#admissions.take();
    try {
      const subject = await readSubject(db, projectId);
      const isExpired = subject?.branches.some(({ id, status }) => id === branchId && status === 'expired');
      const excess = subject && isExpired ? this.#excess(subject, this.#sizeOf(branchId)) : null;
      return excess ? fail(excess) : await storeLifespan(db, change, new Date());
    } finally {
      release();
    }
  }

  #excess(subject: StorageSubject, needed: number): Failure | null {
    const limit = quotaBytes(subject.project.storageQuotaGib);
    const used = this.#used(subject, ['creating', 'active']);
    if (used + needed <= limit) return null;
    const fields = { used_bytes: used, needed_bytes: needed, limit_bytes: limit };
    return { code: 'STORAGE_QUOTA_EXCEEDED', fields };
  }

  #used({ branches }: StorageSubject, statuses: StorageSubject['branches'][number]['status'][]): number {
    return branches
      .filter(({ status }) => statuses.includes(status))
      .reduce((sum, { id }) => sum + this.#sizeOf(id), 0);
  }

  #sizeOf(branchId: string): number {
    const measured = this.#options.lastMeasurement()?.branches[branchId]?.database_size_bytes;
    return measured ?? this.#unmeasured()[branchId] ?? 0;
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
      logEvent(event, fields);
      const { ALERT_EMAIL } = settings();
      if (!ALERT_EMAIL || !sendsMail(settings())) continue;
      outbox.put(storageMail({ event, ...fields }, project.name, ALERT_EMAIL), now.getTime());
    }
  }

  #unmeasured(): Record<string, number> {
    return this.#options.storage.kv.get<Record<string, number>>(UNMEASURED) ?? {};
  }

  /** Also removes branches that have a measurement by now or no database any more. */
  #storeUnmeasured({ branches }: StorageSubject, created: BranchRequest['branches'], bytes: number): void {
    const measured = this.#options.lastMeasurement()?.branches ?? {};
    const existing = new Set(branches.map(({ id }) => id));
    const left = Object.entries(this.#unmeasured()).filter(([id]) => existing.has(id) && !(id in measured));
    const added = created.map(({ id }) => [id, bytes] as const);
    this.#options.storage.kv.put(UNMEASURED, Object.fromEntries([...left, ...added]));
  }
}
