import { backoff } from '../../shared/backoff.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { MAIL_TIMEOUT_MS, type Mail, MailRefused, sendMail } from './mail.ts';

const OUTBOX = 'outbox';
const RETRY_FIRST_MS = 2_000;
const RETRY_LONGEST_MS = 3_600_000;
/** An attempt that is cut off. Not sooner, or a slow service would be sent a mail beside itself. */
const CUT_OFF_AFTER_MS = 2 * MAIL_TIMEOUT_MS;
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
  /** A mail waits no longer. @param sentAt Unix milliseconds; null when it was given up */
  ended?: (id: string, sentAt: number | null) => void;
}

/** Mails of one object until they are taken, in its storage (key `outbox`). */
export class Outbox {
  readonly #options: OutboxOptions;

  constructor(options: OutboxOptions) {
    this.#options = options;
  }

  /** Sends a mail, now or later: the alarm is asked for together with the write, so that it is not forgotten. */
  put(mail: Mail, now: number, id: string = crypto.randomUUID()): void {
    const waiting = [...this.#read(), { id, mail, since: now, attempts: 0, nextAttemptAt: now }];
    for (const { id: oldest } of waiting.splice(0, waiting.length - WAITING_MAX)) {
      logEvent('mail.given_up', { mail_id: oldest, reason: 'too many mails wait' });
      this.#options.ended?.(oldest, null);
    }
    // Nothing is awaited before `send` asks for the alarm.
    this.#options.storage.kv.put(OUTBOX, waiting);
    this.#options.waitUntil(this.send(now));
  }

  /** Tries what is due. The next attempt is asked for beforehand, in case this one is cut off. */
  async send(now: number): Promise<void> {
    const waiting = this.#read();
    const due = waiting.filter(({ nextAttemptAt }) => nextAttemptAt <= now);
    for (const entry of due) {
      entry.attempts += 1;
      entry.nextAttemptAt = now + CUT_OFF_AFTER_MS;
    }
    if (waiting.length > 0) this.#write(waiting);
    await Promise.all(due.map((entry) => this.#try(entry, now)));
  }

  async #try({ id, mail, attempts, since }: WaitingMail, now: number): Promise<void> {
    try {
      await sendMail(this.#options.settings(), mail, id);
      this.#remove(id, now);
      logEvent('mail.sent', { mail_id: id, attempts });
    } catch (error) {
      const givenUp = error instanceof MailRefused || now - since > GIVE_UP_AFTER_MS;
      if (givenUp) this.#remove(id, null);
      else
        this.#tryAgainAt(
          id,
          now + backoff(attempts - 1, { first: RETRY_FIRST_MS, longest: RETRY_LONGEST_MS }),
        );
      const reason = error instanceof Error ? error.message : 'unknown error';
      logEvent(givenUp ? 'mail.given_up' : 'mail.not_sent', { mail_id: id, attempts, reason });
    }
  }

  /** When the next attempt is due (Unix milliseconds); null when no mail waits. */
  nextAttemptAt(): number | null {
    const waiting = this.#read();
    return waiting.length === 0 ? null : Math.min(...waiting.map(({ nextAttemptAt }) => nextAttemptAt));
  }

  #tryAgainAt(id: string, nextAttemptAt: number): void {
    this.#write(this.#read().map((entry) => (entry.id === id ? { ...entry, nextAttemptAt } : entry)));
  }

  #remove(id: string, sentAt: number | null): void {
    this.#write(this.#read().filter((entry) => entry.id !== id));
    this.#options.ended?.(id, sentAt);
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
