import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { type Mail, sendMail } from './mail.ts';

const OUTBOX = 'outbox';
const RETRY_FIRST_MS = 2_000;
const RETRY_LONGEST_MS = 3_600_000;
const GIVE_UP_AFTER_MS = 3 * 24 * 3_600_000;
/** One value of an object's storage holds 2 MiB. */
const WAITING_MAX = 100;

interface WaitingMail {
  id: string;
  mail: Mail;
  since: number;
  attempts: number;
  /** Unix milliseconds. */
  nextAttemptAt: number;
}

interface OutboxOptions {
  storage: DurableObjectStorage;
  settings: () => Settings;
  /** Asks for a call of `send` at that moment (Unix milliseconds), even if this object is gone by then. */
  wakeAt: (moment: number) => void;
  waitUntil: (work: Promise<unknown>) => void;
}

/** Mails of one object until they are taken, in its storage (key `outbox`). */
export class Outbox {
  readonly #options: OutboxOptions;

  constructor(options: OutboxOptions) {
    this.#options = options;
  }

  /** Sends a mail, now or later: the alarm is asked for together with the write, so that it is not forgotten. */
  put(mail: Mail, now: number): void {
    const id = crypto.randomUUID();
    const waiting = [...this.#read(), { id, mail, since: now, attempts: 0, nextAttemptAt: now }];
    for (const { id: oldest } of waiting.splice(0, waiting.length - WAITING_MAX)) {
      logEvent('mail.given_up', { mail_id: oldest, reason: 'too many mails wait' });
    }
    this.#write(waiting);
    this.#options.waitUntil(this.send(now));
  }

  /** Tries what is due. The next attempt is asked for beforehand, in case this one is cut off. */
  async send(now: number): Promise<void> {
    const waiting = this.#read();
    const due = waiting.filter(({ nextAttemptAt }) => nextAttemptAt <= now);
    for (const entry of due) {
      entry.attempts += 1;
      entry.nextAttemptAt = now + Math.min(RETRY_FIRST_MS * 2 ** (entry.attempts - 1), RETRY_LONGEST_MS);
    }
    if (waiting.length > 0) this.#write(waiting);
    await Promise.all(due.map((entry) => this.#try(entry, now)));
  }

  async #try({ id, mail, attempts, since }: WaitingMail, now: number): Promise<void> {
    try {
      await sendMail(this.#options.settings(), mail, id);
      this.#remove(id);
      logEvent('mail.sent', { mail_id: id, attempts });
    } catch (error) {
      const givenUp = now - since > GIVE_UP_AFTER_MS;
      if (givenUp) this.#remove(id);
      const reason = error instanceof Error ? error.message : 'unknown error';
      logEvent(givenUp ? 'mail.given_up' : 'mail.not_sent', { mail_id: id, attempts, reason });
    }
  }

  #remove(id: string): void {
    this.#write(this.#read().filter((entry) => entry.id !== id));
  }

  #read(): WaitingMail[] {
    return this.#options.storage.kv.get<WaitingMail[]>(OUTBOX) ?? [];
  }

  #write(waiting: WaitingMail[]): void {
    const { storage, wakeAt } = this.#options;
    if (waiting.length === 0) {
      storage.kv.delete(OUTBOX);
      return;
    }
    storage.kv.put(OUTBOX, waiting);
    wakeAt(Math.min(...waiting.map(({ nextAttemptAt }) => nextAttemptAt)));
  }
}
