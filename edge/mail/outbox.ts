import { backoff } from '../../shared/backoff.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';
import { MAIL_TIMEOUT_MS, type Mail, MailRefused, sendMail } from './mail.ts';

const OUTBOX = 'outbox';
const RETRY_FIRST_MS = 2_000;
const RETRY_LONGEST_MS = 3_600_000;
/**
 * When an attempt without a result is retried; later than the timeout, so that two attempts do not overlap.
 */
const INTERRUPTED_AFTER_MS = 2 * MAIL_TIMEOUT_MS;
const ABANDON_AFTER_MS = 3 * 24 * 3_600_000;
/** Bounds the stored value: Durable Object storage allows 2 MiB per value. */
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
  /** Schedules a call of `send` (Unix milliseconds) that survives the eviction of this object. */
  wakeAt: (timestamp: number) => void;
  waitUntil: (work: Promise<unknown>) => void;
  /** Called when a mail leaves the outbox. @param sentAt Unix milliseconds; null when it was abandoned */
  ended?: (id: string, sentAt: number | null) => void;
}

/** The unsent mails of one object, in its storage (key `outbox`). */
export class Outbox {
  readonly #options: OutboxOptions;

  constructor(options: OutboxOptions) {
    this.#options = options;
  }

  /**
   * Queues a mail and starts sending it. The alarm is set together with the write, so that no mail is lost.
   */
  put(mail: Mail, now: number, id: string = crypto.randomUUID()): void {
    const waiting = [...this.#read(), { id, mail, since: now, attempts: 0, nextAttemptAt: now }];
    for (const { id: oldest } of waiting.splice(0, waiting.length - WAITING_MAX)) {
      logEvent('mail.given_up', { mail_id: oldest, reason: 'too many mails are waiting' });
      this.#options.ended?.(oldest, null);
    }
    // `send` sets the alarm before its first await, so both writes are atomic.
    this.#options.storage.kv.put(OUTBOX, waiting);
    this.#options.waitUntil(this.send(now));
  }

  /** Sends the mails that are due. Schedules the next attempt first, in case this one is interrupted. */
  async send(now: number): Promise<void> {
    const waiting = this.#read();
    const due = waiting.filter(({ nextAttemptAt }) => nextAttemptAt <= now);
    for (const entry of due) {
      entry.attempts += 1;
      entry.nextAttemptAt = now + INTERRUPTED_AFTER_MS;
    }
    if (waiting.length > 0) this.#write(waiting);
    await Promise.all(due.map((entry) => this.#attempt(entry, now)));
  }

  async #attempt({ id, mail, attempts, since }: WaitingMail, now: number): Promise<void> {
    try {
      await sendMail(this.#options.settings(), mail, id);
      this.#remove(id, now);
      logEvent('mail.sent', { mail_id: id, attempts });
    } catch (error) {
      const abandoned = error instanceof MailRefused || now - since > ABANDON_AFTER_MS;
      if (abandoned) this.#remove(id, null);
      else
        this.#retryAt(id, now + backoff(attempts - 1, { first: RETRY_FIRST_MS, longest: RETRY_LONGEST_MS }));
      const reason = error instanceof Error ? error.message : 'unknown error';
      logEvent(abandoned ? 'mail.given_up' : 'mail.not_sent', { mail_id: id, attempts, reason });
    }
  }

  /** When the next attempt is due (Unix milliseconds); null if no mail is waiting. */
  nextAttemptAt(): number | null {
    const waiting = this.#read();
    return waiting.length === 0 ? null : Math.min(...waiting.map(({ nextAttemptAt }) => nextAttemptAt));
  }

  #retryAt(id: string, nextAttemptAt: number): void {
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
