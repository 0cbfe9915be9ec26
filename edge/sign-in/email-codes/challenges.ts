import { DurableObject } from 'cloudflare:workers';
import { openDatabase } from '../../database/database.ts';
import type { Env } from '../../env.ts';
import { Outbox } from '../../mail/outbox.ts';
import { readSettings } from '../../settings.ts';
import { createAccount } from '../accounts/create-account.ts';
import {
  type Answer,
  type AnswerOutcome,
  type ChallengeBook,
  type ChallengeOrder,
  CODE_TTL_MS,
  emptyBook,
  forget,
  isEmpty,
  mailEnded,
  nextEnd,
  openAt,
  openChallenge,
  triableChallenge,
  tryCode,
} from './challenge.ts';
import { signInMail } from './sign-in-mails.ts';

const BOOK = 'book';

/**
 * One object per e-mail address (`idFromName(address)`, in lower case): codes that wait to be brought, sign-ups that
 * wait for one, and the mails that carry them. Its storage holds the book (`book`), the outbox and an alarm; when
 * nothing is open it is empty.
 */
export class Challenges extends DurableObject<Env> {
  readonly #outbox: Outbox;
  /** Challenges whose right code is being made use of. Lost with the object, and then the code is still good. */
  readonly #inUse = new Set<string>();

  constructor(ctx: DurableObjectState, env: Env) {
    super(ctx, env);
    this.#outbox = new Outbox({
      storage: ctx.storage,
      settings: () => readSettings(env),
      wakeAt: () => this.#schedule(this.#read()),
      waitUntil: (work) => ctx.waitUntil(work),
      ended: (mailId, sentAt) => {
        const book = this.#read();
        mailEnded(book, mailId, sentAt);
        this.#write(book);
      },
    });
  }

  /** Unix milliseconds. Tests set it. */
  protected now(): number {
    return Date.now();
  }

  /**
   * Opens a challenge and mails its code. An address that has had its mails gets no more for a while; nobody who asks
   * is told.
   * @returns Unix milliseconds, if the mail is taken at once
   */
  async start(order: ChallengeOrder): Promise<{ expiresAt: number }> {
    const now = this.now();
    const book = this.#read();
    const challenge = openChallenge(book, order, now);
    if (challenge) {
      this.#write(book);
      const mail = signInMail(readSettings(this.env).SERVICE_NAME, order, challenge.code);
      if (mail) this.#outbox.put(mail, now, challenge.waitingMailId ?? undefined);
    }
    return { expiresAt: now + CODE_TTL_MS };
  }

  /**
   * Tries a code. Nothing is awaited between looking and counting, so no crowd has more tries than one. The right code
   * of a sign-up makes the account before it is forgotten: whatever dies in between, it can be brought again.
   */
  async verify(answer: Answer): Promise<AnswerOutcome> {
    const now = this.now();
    const book = this.#read();
    const challenge = triableChallenge(book, answer);
    if (!challenge || this.#inUse.has(challenge.id)) return { outcome: 'not_looked_at' };
    if (!tryCode(book, challenge, answer.code, now)) {
      this.#write(book);
      return { outcome: 'wrong' };
    }
    const { id, kind, address, signUp } = challenge;
    if (signUp) {
      this.#inUse.add(id);
      try {
        const account = { ...signUp, email: address };
        await createAccount(openDatabase(this.env.DB), account, answer.from ?? {}, new Date(now));
      } finally {
        this.#inUse.delete(id);
      }
    }
    const left = this.#read();
    forget(left, id);
    this.#write(left);
    return { outcome: 'right', kind };
  }

  override async alarm(): Promise<void> {
    await this.#outbox.send(this.now());
    this.#write(this.#read());
  }

  #read(): ChallengeBook {
    return openAt(this.ctx.storage.kv.get<ChallengeBook>(BOOK) ?? emptyBook(), this.now());
  }

  #write(book: ChallengeBook): void {
    const { storage } = this.ctx;
    if (isEmpty(book) && this.#outbox.nextAttemptAt() === null) {
      void storage.deleteAll();
      return;
    }
    storage.kv.put(BOOK, book);
    this.#schedule(book);
  }

  /** The alarm is at the first of all that is due, whoever asks for it. */
  #schedule(book: ChallengeBook): void {
    const due = [nextEnd(book), this.#outbox.nextAttemptAt()].filter((moment) => moment !== null);
    if (due.length > 0) void this.ctx.storage.setAlarm(Math.min(...due));
  }
}
