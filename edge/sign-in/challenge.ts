import type { Result } from '../../shared/result.ts';
import type { ClientDetails } from '../audit/audit-event.ts';
import type { Mail } from '../mail/mail.ts';

/**
 * The purpose of a code: a sign-up, an invitation, a sign-in without a password, a new password, or a second
 * factor.
 */
export type ChallengeKind = 'sign_up' | 'invitation' | 'magic_link' | 'password_reset' | 'second_factor';

export interface SignUp {
  name: string;
  /** A result of `hashPassword`. */
  passwordHash: string;
}

export interface ChallengeRequest {
  kind: ChallengeKind;
  /**
   * Chosen by the caller. An open challenge with this ID gets a new code and retains its number of attempts;
   * an open invitation stays as it is.
   */
  challengeId: string;
  address: string;
  /** `account_exists` and `none` open a challenge that no code can solve. */
  mail: 'code' | 'account_exists' | 'none';
  /** Required for `sign_up`. */
  signUp?: SignUp;
  /** Required for `invitation`: what its mail says. */
  invitation?: { inviter: string; role: string };
}

export interface CodeSubmission {
  challengeId: string;
  /** The kinds of challenge that the code may solve. */
  kinds: readonly ChallengeKind[];
  code: string;
  /** For `invitation`. */
  name?: string;
  /** For `invitation` and `password_reset`: as `hashPassword` returns it. */
  passwordHash?: string;
  /** For the audit event of an account that this creates or changes. */
  client?: ClientDetails;
}

/** `not_evaluated`: no challenge of this ID accepts another attempt, so the code was not compared. */
export type SubmissionResult = Result<{ kind: ChallengeKind }, 'wrong' | 'not_evaluated'>;

/** A stored challenge. Timestamps are Unix milliseconds. */
export interface EmailChallenge {
  id: string;
  kind: ChallengeKind;
  address: string;
  /** Null when no code was mailed, so that none is right. */
  code: string | null;
  wrongTries: number;
  expiresAt: number;
  /** The mail with the code while it waits in the outbox. The challenge does not expire before it is sent. */
  waitingMailId: string | null;
  /** With the IDs of the future account, so that creating it twice creates one. */
  signUp: (SignUp & { accountId: string; tenantId: string }) | null;
}

type FactorStep = 'first_factor' | 'invitation' | 'second_factor';

/** Timestamps of what counts against a limit, in Unix milliseconds. */
interface Counts {
  mails: number[];
  wrongTries: number[];
}

/** The stored state of one e-mail address. */
export interface AddressState {
  challenges: EmailChallenge[];
  counts: Record<FactorStep, Counts>;
}

export const CODE_TTL_MS = 10 * 60_000;
export const INVITATION_TTL_MS = 7 * 24 * 3_600_000;
const ttlOf = (kind: ChallengeKind) => (kind === 'invitation' ? INVITATION_TTL_MS : CODE_TTL_MS);
export const CODE_DIGITS = 6;
const ATTEMPTS_MAX = 5;
const MAILS = { max: 5, windowMs: 15 * 60_000 };
const WRONG_ATTEMPTS = { max: 20, windowMs: 3_600_000 };

/**
 * Counted separately: anyone can request codes of a first factor, which must not lock the owner out of the
 * second, nor keep an invitation from arriving.
 */
const STEP_OF: Record<ChallengeKind, FactorStep> = {
  sign_up: 'first_factor',
  invitation: 'invitation',
  magic_link: 'first_factor',
  password_reset: 'first_factor',
  second_factor: 'second_factor',
};

const noCounts = (): Counts => ({ mails: [], wrongTries: [] });

export const emptyState = (): AddressState => ({
  challenges: [],
  counts: { first_factor: noCounts(), invitation: noCounts(), second_factor: noCounts() },
});

/** Every code is equally likely: numbers above the last multiple of the number of codes are rejected. */
function randomCode(): string {
  const codes = 10 ** CODE_DIGITS;
  const bound = 2 ** 32 - (2 ** 32 % codes);
  for (;;) {
    const [random = bound] = crypto.getRandomValues(new Uint32Array(1));
    if (random < bound) return String(random % codes).padStart(CODE_DIGITS, '0');
  }
}

export function withoutExpired({ challenges, counts }: AddressState, now: number): AddressState {
  const recent = ({ mails, wrongTries }: Counts): Counts => ({
    mails: mails.filter((timestamp) => timestamp + MAILS.windowMs > now),
    wrongTries: wrongTries.filter((timestamp) => timestamp + WRONG_ATTEMPTS.windowMs > now),
  });
  return {
    challenges: challenges.filter(
      ({ expiresAt, waitingMailId }) => expiresAt > now || waitingMailId !== null,
    ),
    counts: {
      first_factor: recent(counts.first_factor),
      // A state that an earlier release has stored has none.
      invitation: recent(counts.invitation ?? noCounts()),
      second_factor: recent(counts.second_factor),
    },
  };
}

/** Unix milliseconds at which the first entry of the state expires; null when nothing will. */
export function nextExpiry({ challenges, counts }: AddressState): number | null {
  const expiries = [
    ...challenges.filter(({ waitingMailId }) => waitingMailId === null).map(({ expiresAt }) => expiresAt),
    ...Object.values(counts).flatMap(({ mails, wrongTries }) => [
      ...mails.map((timestamp) => timestamp + MAILS.windowMs),
      ...wrongTries.map((timestamp) => timestamp + WRONG_ATTEMPTS.windowMs),
    ]),
  ];
  return expiries.length === 0 ? null : Math.min(...expiries);
}

export const isEmptyState = (state: AddressState): boolean =>
  state.challenges.length === 0 && nextExpiry(state) === null;

/**
 * Opens a challenge. It counts as a mail even if none is sent, so that the limit does not reveal the
 * difference.
 * @returns null when the invitation is already open, or the address has reached its limit of mails
 */
export function openChallenge(
  state: AddressState,
  { kind, challengeId, address, mail, signUp }: ChallengeRequest,
  now: number,
): EmailChallenge | null {
  const previous = state.challenges.find(({ id }) => id === challengeId);
  // A repeated request must leave the code in the mail valid.
  if (previous && kind === 'invitation') return null;
  const { mails } = state.counts[STEP_OF[kind]];
  if (mails.length >= MAILS.max) return null;
  mails.push(now);
  const challenge: EmailChallenge = {
    id: challengeId,
    kind,
    address,
    code: mail === 'code' ? randomCode() : null,
    wrongTries: previous?.wrongTries ?? 0,
    expiresAt: now + ttlOf(kind),
    waitingMailId: mail === 'code' ? crypto.randomUUID() : null,
    signUp: signUp ? { ...signUp, accountId: crypto.randomUUID(), tenantId: crypto.randomUUID() } : null,
  };
  state.challenges = [...state.challenges.filter((open) => open !== previous), challenge];
  return challenge;
}

/** The challenge, if it and its address accept another attempt. */
export const challengeFor = (
  { challenges, counts }: AddressState,
  { challengeId, kinds }: Pick<CodeSubmission, 'challengeId' | 'kinds'>,
): EmailChallenge | undefined =>
  challenges.find(
    ({ id, kind, wrongTries }) =>
      id === challengeId &&
      kinds.includes(kind) &&
      wrongTries < ATTEMPTS_MAX &&
      counts[STEP_OF[kind]].wrongTries.length < WRONG_ATTEMPTS.max,
  );

/**
 * Compares a code and counts a wrong one, against the challenge and the address. The comparison need not be
 * constant-time, because five attempts reveal too little.
 */
export function isRightCode(
  state: AddressState,
  challenge: EmailChallenge,
  code: string,
  now: number,
): boolean {
  if (code === challenge.code) return true;
  challenge.wrongTries += 1;
  state.counts[STEP_OF[challenge.kind]].wrongTries.push(now);
  return false;
}

export function removeChallenge(state: AddressState, challengeId: string): void {
  state.challenges = state.challenges.filter(({ id }) => id !== challengeId);
}

/** An invitation is another tenant's, or a new one, and stays open. */
export function removeSignIns(state: AddressState): void {
  state.challenges = state.challenges.filter(({ kind }) => kind === 'invitation');
}

/**
 * Starts the lifetime of a code when its mail is sent.
 * @param sentAt Unix milliseconds; null when the mail was abandoned, which removes the challenge
 */
export function settleMail(state: AddressState, mailId: string, sentAt: number | null): void {
  const challenge = state.challenges.find(({ waitingMailId }) => waitingMailId === mailId);
  if (!challenge) return;
  if (sentAt === null) {
    removeChallenge(state, challenge.id);
  } else {
    challenge.waitingMailId = null;
    challenge.expiresAt = sentAt + ttlOf(challenge.kind);
  }
}

/** The Durable Object that holds the open challenges of one e-mail address. */
export interface ChallengesRpc extends Rpc.DurableObjectBranded {
  /** @returns when the code expires, in Unix milliseconds */
  start(request: ChallengeRequest): Promise<{ expiresAt: number }>;
  /** Refuses the code of a challenge from now on. */
  cancel(challengeId: string): Promise<void>;
  /** Refuses the codes of all challenges but invitations from now on. */
  cancelSignIns(): Promise<void>;
  verify(submission: CodeSubmission): Promise<SubmissionResult>;
  /** Sends a mail, with retries. */
  notify(mail: Mail): Promise<void>;
}

/** The objects of mailed codes, by e-mail address. */
export interface ChallengeObjects {
  CHALLENGES: DurableObjectNamespace<ChallengesRpc>;
}

/** The `Challenges` object of an e-mail address. */
export const challengesOf = ({ CHALLENGES }: ChallengeObjects, address: string) =>
  CHALLENGES.get(CHALLENGES.idFromName(address.toLowerCase()));
