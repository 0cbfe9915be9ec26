import type { AuditActor } from '../../audit/actor.ts';

/** A code is for a sign-up, for a sign-in without a password, or for a second factor. */
export type ChallengeKind = 'sign_up' | 'magic_link' | 'second_factor';

export interface SignUp {
  name: string;
  /** As `hashPassword` makes it. */
  passwordHash: string;
}

/** What is asked of the object of an address to begin with. */
export interface ChallengeOrder {
  kind: ChallengeKind;
  /** Made by the caller. One that is open already gets a new code and keeps its count of tries. */
  challengeId: string;
  address: string;
  /** `account_exists` and `none` open a challenge that no code is right for. */
  mail: 'code' | 'account_exists' | 'none';
  /** Of `sign_up`. */
  signUp?: SignUp;
}

/** A code that somebody brings. */
export interface Answer {
  challengeId: string;
  kinds: readonly ChallengeKind[];
  code: string;
  /** For the audit row of an account that this makes. */
  from?: Pick<AuditActor, 'ip' | 'userAgent' | 'requestId'>;
}

/** `not_looked_at`: there is no challenge that a code may be tried at. */
export type AnswerOutcome =
  | { outcome: 'right'; kind: ChallengeKind }
  | { outcome: 'wrong' }
  | { outcome: 'not_looked_at' };

/** Moments are Unix milliseconds. */
export interface Challenge {
  id: string;
  kind: ChallengeKind;
  address: string;
  /** Null where no code is right: nobody was mailed one. */
  code: string | null;
  wrongTries: number;
  expiresAt: number;
  /** The mail with the code while it waits to be sent; so long the challenge stays, however late it gets. */
  waitingMailId: string | null;
  /** With the ids the account will have, so that making it twice makes one. */
  signUp: (SignUp & { accountId: string; tenantId: string }) | null;
}

type Step = 'first_factor' | 'second_factor';

/** Moments that count against a limit. */
interface Counts {
  mails: number[];
  wrongTries: number[];
}

/** All that is kept of one address. */
export interface ChallengeBook {
  challenges: Challenge[];
  counts: Record<Step, Counts>;
}

export const CODE_TTL_MS = 10 * 60_000;
export const CODE_DIGITS = 6;
const TRIES_MAX = 5;
const MAILS = { max: 5, windowMs: 15 * 60_000 };
const WRONG_TRIES = { max: 20, windowMs: 3_600_000 };

/** Anybody can ask for a first factor's code; what that uses up must not lock the owner out of the second. */
const STEP_OF: Record<ChallengeKind, Step> = {
  sign_up: 'first_factor',
  magic_link: 'first_factor',
  second_factor: 'second_factor',
};

export const emptyBook = (): ChallengeBook => ({
  challenges: [],
  counts: {
    first_factor: { mails: [], wrongTries: [] },
    second_factor: { mails: [], wrongTries: [] },
  },
});

/** Each code is as likely as any other: what is over the last multiple of their number is drawn anew. */
function randomCode(): string {
  const codes = 10 ** CODE_DIGITS;
  const bound = 2 ** 32 - (2 ** 32 % codes);
  for (;;) {
    const [drawn = bound] = crypto.getRandomValues(new Uint32Array(1));
    if (drawn < bound) return String(drawn % codes).padStart(CODE_DIGITS, '0');
  }
}

/** The book without what is over. */
export function openAt({ challenges, counts }: ChallengeBook, now: number): ChallengeBook {
  const open = ({ mails, wrongTries }: Counts): Counts => ({
    mails: mails.filter((moment) => moment + MAILS.windowMs > now),
    wrongTries: wrongTries.filter((moment) => moment + WRONG_TRIES.windowMs > now),
  });
  return {
    challenges: challenges.filter(
      ({ expiresAt, waitingMailId }) => expiresAt > now || waitingMailId !== null,
    ),
    counts: { first_factor: open(counts.first_factor), second_factor: open(counts.second_factor) },
  };
}

/** When the next of it is over; null when nothing is left to end. */
export function nextEnd({ challenges, counts }: ChallengeBook): number | null {
  const ends = [
    ...challenges.filter(({ waitingMailId }) => waitingMailId === null).map(({ expiresAt }) => expiresAt),
    ...Object.values(counts).flatMap(({ mails, wrongTries }) => [
      ...mails.map((moment) => moment + MAILS.windowMs),
      ...wrongTries.map((moment) => moment + WRONG_TRIES.windowMs),
    ]),
  ];
  return ends.length === 0 ? null : Math.min(...ends);
}

export const isEmpty = (book: ChallengeBook): boolean =>
  book.challenges.length === 0 && nextEnd(book) === null;

/**
 * Opens a challenge. It counts as a mail also where none is sent, so that nobody learns the difference by counting.
 * @returns null when the address has had its mails: nothing is opened
 */
export function openChallenge(
  book: ChallengeBook,
  { kind, challengeId, address, mail, signUp }: ChallengeOrder,
  now: number,
): Challenge | null {
  const { mails } = book.counts[STEP_OF[kind]];
  if (mails.length >= MAILS.max) return null;
  mails.push(now);
  const former = book.challenges.find(({ id }) => id === challengeId);
  const challenge: Challenge = {
    id: challengeId,
    kind,
    address,
    code: mail === 'code' ? randomCode() : null,
    wrongTries: former?.wrongTries ?? 0,
    expiresAt: now + CODE_TTL_MS,
    waitingMailId: mail === 'code' ? crypto.randomUUID() : null,
    signUp: signUp ? { ...signUp, accountId: crypto.randomUUID(), tenantId: crypto.randomUUID() } : null,
  };
  book.challenges = [...book.challenges.filter((open) => open !== former), challenge];
  return challenge;
}

/** The challenge that a code may be tried at; none when it is dead or the address has had its tries. */
export const triableChallenge = (
  { challenges, counts }: ChallengeBook,
  { challengeId, kinds }: Pick<Answer, 'challengeId' | 'kinds'>,
): Challenge | undefined =>
  challenges.find(
    ({ id, kind, wrongTries }) =>
      id === challengeId &&
      kinds.includes(kind) &&
      wrongTries < TRIES_MAX &&
      counts[STEP_OF[kind]].wrongTries.length < WRONG_TRIES.max,
  );

/**
 * Tries a code; a wrong one is counted, against the challenge and the address. Five tries are too few to learn
 * anything from the time of a comparison.
 */
export function tryCode(book: ChallengeBook, challenge: Challenge, code: string, now: number): boolean {
  if (code === challenge.code) return true;
  challenge.wrongTries += 1;
  book.counts[STEP_OF[challenge.kind]].wrongTries.push(now);
  return false;
}

export function forget(book: ChallengeBook, challengeId: string): void {
  book.challenges = book.challenges.filter(({ id }) => id !== challengeId);
}

/** Its time begins when its mail is handed over. @param sentAt null when the mail was given up */
export function mailEnded(book: ChallengeBook, mailId: string, sentAt: number | null): void {
  const challenge = book.challenges.find(({ waitingMailId }) => waitingMailId === mailId);
  if (!challenge) return;
  if (sentAt === null) {
    forget(book, challenge.id);
  } else {
    challenge.waitingMailId = null;
    challenge.expiresAt = sentAt + CODE_TTL_MS;
  }
}
