import type { Settings } from '../settings.ts';

export interface Limit {
  /** How many requests one window lets through. */
  max: (settings: Settings) => number;
  windowSeconds: number;
  /**
   * When a count reaches storage. A count that keeps an attacker off is there before its request is answered, so
   * that no crash gives new tries; the others may lose what their last second counted.
   */
  written: 'within_a_second' | 'before_the_answer';
  /** Counts of it can be given back, so that who was refused may be let in before the window ends. */
  refundable?: true;
}

/** What guards a secret that can be guessed: wrong tries count, right ones are given back. */
const wrongTries = (most: number): Limit => ({
  max: () => most,
  windowSeconds: 3600,
  written: 'before_the_answer',
  refundable: true,
});

/** Spec section 8. */
export const LIMITS = {
  reads: {
    max: ({ LIMIT_READS_PER_MINUTE }) => LIMIT_READS_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  writes: {
    max: ({ LIMIT_WRITES_PER_MINUTE }) => LIMIT_WRITES_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  public: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  // Links and enrolments of the hosts behind one address. An agent dials at most some times a minute.
  agents: { max: () => 60, windowSeconds: 60, written: 'within_a_second' },
  failed_authentication: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'before_the_answer',
  },
  rotations: { max: () => 5, windowSeconds: 3600, written: 'before_the_answer' },
  // Below: api.md under Sign-in. Passwords that were wrong: of one e-mail address, and from one client address.
  wrong_passwords: wrongTries(30),
  wrong_passwords_of_address: wrongTries(100),
  // Codes by mail that were wrong, from one client address: with many accounts there is always another one to try.
  wrong_codes_of_address: wrongTries(100),
  // Sign-ups and magic links that one client address asks for.
  mails_of_address: { max: () => 200, windowSeconds: 3600, written: 'before_the_answer' },
  // Codes of a second factor that were wrong: with one pre-auth token, and of one user.
  second_factor_tries: { max: () => 5, windowSeconds: 3600, written: 'before_the_answer' },
  wrong_second_factors: wrongTries(30),
  // What holds once and is over within the hour: a state, a code, the last step of a sign-in.
  single_use: { max: () => 1, windowSeconds: 3600, written: 'before_the_answer', refundable: true },
} satisfies Record<string, Limit>;

export type LimitName = keyof typeof LIMITS;
export type LimitTable = Record<LimitName, Limit>;
