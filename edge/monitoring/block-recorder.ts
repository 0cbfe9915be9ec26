import type { ProjectBlocks } from '../../shared/block.ts';
import type { Database } from '../database/database.ts';
import { Slots } from '../jobs/slots.ts';
import { sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { Settings } from '../settings.ts';
import { blockMails, type MailedBlocks } from './block-mails.ts';
import { isOutdated, readBlockSubject, storeBlocks } from './store-blocks.ts';

interface BlockRecorderOptions {
  db: Database;
  storage: DurableObjectStorage;
  settings: () => Settings;
  outbox: Outbox;
}

/** Storage key of the last observation, until it is recorded and its mails are in the outbox. */
const PENDING = 'pending_blocks';
/** Storage key of the times of the last mails. */
const MAILED = 'mailed_blocks';

interface Pending {
  observed: ProjectBlocks;
  /** The host that sent it. */
  hostId: string | undefined;
}

/** Records the blocks of one project's branches. The observation is stored first, so that a crash loses nothing. */
export class BlockRecorder {
  readonly #options: BlockRecorderOptions;
  /** Observations are recorded one after another, so that each sees the records of the one before. */
  readonly #recordings = new Slots(1);

  constructor(options: BlockRecorderOptions) {
    this.#options = options;
  }

  /** To be called with the object's alarm set, which calls `finish` after a crash. */
  async record(observed: ProjectBlocks, hostId?: string): Promise<void> {
    this.#options.storage.kv.put(PENDING, { observed, hostId } satisfies Pending);
    await this.finish();
  }

  /** Records the stored observation, if there is one. A repetition changes nothing. */
  async finish(): Promise<void> {
    const { storage } = this.#options;
    const release = await this.#recordings.take();
    try {
      const pending = storage.kv.get<Pending>(PENDING);
      if (!pending) return;
      await this.#store(pending);
      // A newer observation may have arrived meanwhile; its own call records it.
      const stored = storage.kv.get<Pending>(PENDING);
      if (stored?.observed.observed_at === pending.observed.observed_at) storage.kv.delete(PENDING);
    } finally {
      release();
    }
  }

  async #store({ observed, hostId }: Pending): Promise<void> {
    const { db, storage, settings, outbox } = this.#options;
    const subject = await readBlockSubject(db, observed.project_id);
    // A host may only report its own projects.
    if (!subject || (hostId ?? subject.project.hostId) !== subject.project.hostId) return;
    const now = new Date();
    if (isOutdated(subject.project, observed, now)) return;
    if (!(await storeBlocks(db, subject, observed, now))) {
      throw new Error(`project ${observed.project_id} has changed while its blocks were recorded`);
    }
    if (!sendsMail(settings())) return;
    const sending = { alertEmail: settings().ALERT_EMAIL, now: now.getTime() };
    const known = storage.kv.get<MailedBlocks>(MAILED) ?? {};
    const { mails, mailed } = blockMails(subject, observed, { ...sending, mailed: known });
    if (mails.length === 0) return;
    // The mails and the record that they were sent are one write, because nothing is awaited between them.
    storage.kv.put(MAILED, mailed);
    for (const mail of mails) outbox.put(mail, now.getTime());
  }
}
