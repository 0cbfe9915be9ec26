import { DurableObject } from 'cloudflare:workers';
import { fail, ok } from '../../shared/result.ts';
import type { DatabaseBinding } from '../database/database.ts';
import type { Mail } from '../mail/mail.ts';
import { Outbox } from '../mail/outbox.ts';
import { readSettings } from '../settings.ts';
import {
  type AddressState,
  type ChallengeRequest,
  type ChallengesRpc,
  CODE_TTL_MS,
  type CodeSubmission,
  challengeFor,
  emptyState,
  isEmptyState,
  isRightCode,
  nextExpiry,
  openChallenge,
  removeChallenge,
  removeSignIns,
  type SubmissionResult,
  settleMail,
  withoutExpired,
} from './challenge.ts';
import { completeChallenge } from './email-code.ts';
import { signInMail } from './sign-in-mails.ts';

/** Storage key of the `AddressState`. */
const STATE_KEY = 'book';

/**
 * One object per e-mail address (`idFromName(address)`, in lower case). It stores open challenges, unfinished
 * sign-ups and the mails with their codes, and it is empty when nothing is open.
 */
export class Challenges extends DurableObject<DatabaseBinding> implements ChallengesRpc {
  readonly #outbox: Outbox;
  /**
   * Challenges whose right code is being processed. If the object is lost meanwhile, the code stays valid.
   */
  readonly #inProgress = new Set<string>();

  constructor(ctx: DurableObjectState, env: DatabaseBinding) {
    super(ctx, env);
    this.#outbox = new Outbox({
      storage: ctx.storage,
      settings: () => readSettings(env),
      wakeAt: () => this.#schedule(this.#read()),
      waitUntil: (work) => ctx.waitUntil(work),
      ended: (mailId, sentAt) => {
        const state = this.#read();
        settleMail(state, mailId, sentAt);
        this.#write(state);
      },
    });
  }

  /** Unix milliseconds. Tests override it. */
  protected now(): number {
    return Date.now();
  }

  /**
   * Opens a challenge and mails its code. An address that has reached its limit gets no mail, and the result
   * does not reveal it.
   * @returns Unix milliseconds, assuming that the mail is sent immediately
   */
  async start(request: ChallengeRequest): Promise<{ expiresAt: number }> {
    const now = this.now();
    const state = this.#read();
    const challenge = openChallenge(state, request, now);
    if (challenge) {
      this.#write(state);
      const mail = signInMail(readSettings(this.env).SERVICE_NAME, request, challenge.code);
      if (mail) this.#outbox.put(mail, now, challenge.waitingMailId ?? undefined);
    }
    return { expiresAt: now + CODE_TTL_MS };
  }

  /**
   * Evaluates a code. Nothing is awaited between comparing and counting, so concurrent submissions get no
   * extra attempts. What the code does in D1 is done before its challenge is removed, so that the code can be
   * submitted again after a failure in between.
   */
  async verify(submission: CodeSubmission): Promise<SubmissionResult> {
    const { challengeId, kinds, code } = submission;
    const now = this.now();
    const state = this.#read();
    const challenge = challengeFor(state, { challengeId, kinds });
    if (!challenge || this.#inProgress.has(challenge.id)) return fail('not_evaluated');
    if (!isRightCode(state, challenge, code, now)) {
      this.#write(state);
      return fail('wrong');
    }
    const { id, kind } = challenge;
    this.#inProgress.add(id);
    try {
      await completeChallenge(this.env, challenge, submission, new Date(now));
    } finally {
      this.#inProgress.delete(id);
    }
    const current = this.#read();
    removeChallenge(current, id);
    this.#write(current);
    return ok({ kind });
  }

  /** Mails something to the address that is no challenge. */
  async notify(mail: Mail): Promise<void> {
    this.#outbox.put(mail, this.now());
  }

  async cancel(challengeId: string): Promise<void> {
    const state = this.#read();
    removeChallenge(state, challengeId);
    this.#write(state);
  }

  async cancelSignIns(): Promise<void> {
    const state = this.#read();
    removeSignIns(state);
    this.#write(state);
  }

  override async alarm(): Promise<void> {
    await this.#outbox.send(this.now());
    this.#write(this.#read());
  }

  #read(): AddressState {
    const stored = this.ctx.storage.kv.get<AddressState>(STATE_KEY) ?? emptyState();
    return withoutExpired(stored, this.now());
  }

  #write(state: AddressState): void {
    const { storage } = this.ctx;
    if (isEmptyState(state) && this.#outbox.nextAttemptAt() === null) {
      void storage.deleteAll();
      return;
    }
    storage.kv.put(STATE_KEY, state);
    this.#schedule(state);
  }

  /** Sets the alarm to the first expiry or mail attempt. */
  #schedule(state: AddressState): void {
    const due = [nextExpiry(state), this.#outbox.nextAttemptAt()].filter((timestamp) => timestamp !== null);
    if (due.length > 0) void this.ctx.storage.setAlarm(Math.min(...due));
  }
}
