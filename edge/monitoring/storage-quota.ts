import type { Failure } from '../../shared/failures.ts';
import { evaluateStorage, quotaBytes, type StorageState } from '../../shared/project/storage-quota.ts';
import type { Database } from '../database/database.ts';
import type { Reservation } from '../jobs/reservation.ts';
import { logEvent } from '../log.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { ProjectRow } from '../projects/project-resource.ts';
import type { Settings } from '../settings.ts';
import type { LastMeasurement } from './measurement-store.ts';
import { EVENTS_OF_STATE, type StorageEventName, storageEvent, storageMail } from './storage-events.ts';
import { readSubject, type StorageSubject, storeStorageUsage } from './storage-usage.ts';

/** What is known of a project's storage. */
export interface StorageStatus {
  hostId: string;
  /** Bytes of all active branches together. */
  used: number;
  state: StorageState;
}

export interface Clone {
  projectId: string;
  branchId: string;
  sourceId: string;
}

interface StorageKeeperOptions {
  db: Database;
  storage: DurableObjectStorage;
  settings: () => Settings;
  outbox: Outbox;
  lastMeasurement: () => LastMeasurement | null;
}

/** What of the running episode was told already: an episode ends when the project is `normal`. */
const TOLD = 'told_of_episode';
/** Bytes of clones that no measurement has seen yet, by branch id: as many as their source had. */
const UNMEASURED = 'unmeasured';
/** Somebody changes the project again and again as it is judged; the next measurement judges it in any case. */
const TRIES = 3;

/**
 * Keeps one project's storage quota (spec 3.2): judges its usage after each measurement and each change of the quota,
 * and sees that a clone fits before it is made. Its part of the object's storage are the two keys above; usage and
 * state are in D1.
 */
export class StorageQuota {
  readonly #options: StorageKeeperOptions;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(options: StorageKeeperOptions) {
    this.#options = options;
  }

  /**
   * Judges the project by the last measurement, and tells of it once an episode. What was told is noted apart from
   * the state, so that an object that dies in between tells it after the next measurement.
   * @param subject as it was just read
   * @returns null when there is no such project, or no measurement yet
   */
  async evaluate(projectId: string, subject?: StorageSubject | null): Promise<StorageStatus | null> {
    const { db } = this.#options;
    for (let tries = 0; tries < TRIES; tries++) {
      const current = (tries === 0 && subject) || (await readSubject(db, projectId));
      if (!current || !this.#options.lastMeasurement()) return null;
      const { project } = current;
      const now = new Date();
      const used = this.#used(current, ['active']);
      const state = evaluateStorage(project.storageState, used, quotaBytes(project.storageQuotaGib));
      if (!(await storeStorageUsage(db, project, { used, state }, now))) continue;
      this.#tell(project, { used, state }, now);
      return { hostId: project.hostId, used, state };
    }
    return null;
  }

  /**
   * Reserves a clone if it fits: usage, and what clones take that no measurement has seen, and the size of its source.
   * @returns as `reserve`, or refused with STORAGE_QUOTA_EXCEEDED
   */
  reserveClone(
    { projectId, branchId, sourceId }: Clone,
    reserve: () => Promise<Reservation>,
  ): Promise<Reservation> {
    return this.#inTurn(projectId, async (subject) => {
      const needed = this.#sizeOf(sourceId);
      const refused = subject && this.#lack(subject, needed);
      if (refused) return { refused };
      const reservation = await reserve();
      if (subject && 'job' in reservation) this.#noteUnmeasured(subject, { [branchId]: needed });
      return reservation;
    });
  }

  /** Lets a branch live on; one that has expired, and does not count at the moment, if it fits in again. */
  extend<T>(
    projectId: string,
    branchId: string,
    record: () => Promise<T>,
  ): Promise<T | { failure: Failure }> {
    return this.#inTurn(projectId, async (subject) => {
      const isExpired = subject?.branches.some(({ id, status }) => id === branchId && status === 'expired');
      const failure = subject && isExpired ? this.#lack(subject, this.#sizeOf(branchId)) : null;
      return failure ? { failure } : record();
    });
  }

  /** One after another: each sees on record what the one before has made. */
  #inTurn<T>(projectId: string, work: (subject: StorageSubject | null) => Promise<T>): Promise<T> {
    const done = this.#turn.then(async () => work(await readSubject(this.#options.db, projectId)));
    this.#turn = done.catch(() => {});
    return done;
  }

  #lack(subject: StorageSubject, needed: number): Failure | null {
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

  #tell(project: ProjectRow, { used, state }: { used: number; state: StorageState }, now: Date): void {
    const { storage, settings, outbox } = this.#options;
    const told = storage.kv.get<StorageEventName[]>(TOLD) ?? [];
    if (state === 'normal') {
      if (told.length > 0) storage.kv.delete(TOLD);
      return;
    }
    const news = EVENTS_OF_STATE[state].filter((name) => !told.includes(name));
    if (news.length === 0) return;
    // The mails and the note that they are told are one write: nothing is awaited between them.
    storage.kv.put(TOLD, [...told, ...news]);
    for (const name of news) {
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

  /** And forgets of others what has been measured since, and what is on record no longer. */
  #noteUnmeasured({ branches }: StorageSubject, bytes: Record<string, number>): void {
    const measured = this.#options.lastMeasurement()?.branches ?? {};
    const onRecord = new Set(branches.map(({ id }) => id));
    const left = Object.entries(this.#unmeasured()).filter(([id]) => onRecord.has(id) && !(id in measured));
    this.#options.storage.kv.put(UNMEASURED, { ...Object.fromEntries(left), ...bytes });
  }
}
