import type { Settings } from '../settings.ts';

export interface Limit {
  /** Requests allowed per window. */
  max: (settings: Settings) => number;
  windowSeconds: number;
  /**
   * When a count is written to storage. Counts that limit guessing are written before the response, so that a
   * crash does not grant new attempts; the others can lose the counts of the last second.
   */
  written: 'within_a_second' | 'before_the_response';
  /**
   * Counts can be refunded, so a denied client may be admitted before the window ends; denials are not
   * cached.
   */
  refundable?: true;
  /**
   * Isolates borrow shares of the window, so that most requests need no call of the object
   * (`LentShares`). Never for a count that limits guessing: such a count is exact.
   */
  lent?: true;
}

/** A limit on guessing a secret: each attempt is counted, and a correct one is refunded. */
const wrongTries = (max: number): Limit => ({
  max: () => max,
  windowSeconds: 3600,
  written: 'before_the_response',
  refundable: true,
});

const halfOf = (limit: number) => Math.ceil(limit / 2);

/** Specification 8, and the limits of sign-in. */
export const LIMITS = {
  reads: {
    max: ({ LIMIT_READS_PER_MINUTE }) => LIMIT_READS_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
    lent: true,
  },
  writes: {
    max: ({ LIMIT_WRITES_PER_MINUTE }) => LIMIT_WRITES_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
    lent: true,
  },
  // One API key or workload, within the limits of its tenant.
  machine_reads: {
    max: ({ LIMIT_READS_PER_MINUTE }) => halfOf(LIMIT_READS_PER_MINUTE),
    windowSeconds: 60,
    written: 'within_a_second',
    lent: true,
  },
  machine_writes: {
    max: ({ LIMIT_WRITES_PER_MINUTE }) => halfOf(LIMIT_WRITES_PER_MINUTE),
    windowSeconds: 60,
    written: 'within_a_second',
    lent: true,
  },
  // Requests of SQL over HTTP to one branch.
  sql: {
    max: ({ LIMIT_SQL_PER_MINUTE }) => LIMIT_SQL_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
    lent: true,
  },
  // Wrong passwords of SQL over HTTP, for one branch from one client address. As many as at the ports.
  wrong_sql_passwords: { max: () => 50, windowSeconds: 60, written: 'before_the_response' },
  public: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'within_a_second',
  },
  // Links and enrolments of the hosts behind one address. An agent connects at most a few times a minute.
  agents: { max: () => 60, windowSeconds: 60, written: 'within_a_second' },
  failed_authentication: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'before_the_response',
  },
  // Separate from failed tokens, which any client behind the same address can cause.
  failed_platform_secret: {
    max: ({ LIMIT_PUBLIC_PER_MINUTE }) => LIMIT_PUBLIC_PER_MINUTE,
    windowSeconds: 60,
    written: 'before_the_response',
  },
  rotations: { max: () => 5, windowSeconds: 3600, written: 'before_the_response' },
  // Wrong passwords, per e-mail address and per client address.
  wrong_passwords: wrongTries(30),
  wrong_passwords_of_address: wrongTries(100),
  // Wrong e-mail codes per client address, because an attacker can try the codes of many accounts.
  wrong_codes_of_address: wrongTries(100),
  // Sign-ups, magic links, password resets and invitations per client address.
  mails_of_address: { max: () => 200, windowSeconds: 3600, written: 'before_the_response' },
  // Invitations per tenant, because each is a mail to an address of the inviter's choice.
  invitations: { max: () => 50, windowSeconds: 3600, written: 'before_the_response' },
  // Sign-ups, and invitations, for one mailbox, because nobody there has asked for them.
  unasked_mails: { max: () => 10, windowSeconds: 86_400, written: 'before_the_response' },
  // Changes that are mailed to all owners of a tenant.
  owner_notices: { max: () => 10, windowSeconds: 3600, written: 'before_the_response' },
  // Mails about the storage and the blocks of a tenant's projects, because a tenant can cause them at will.
  alerts: { max: () => 30, windowSeconds: 3600, written: 'before_the_response' },
  // Registrations of OAuth clients per client address, because anybody can register.
  client_registrations: { max: () => 20, windowSeconds: 3600, written: 'before_the_response' },
  // Metadata documents of OAuth clients that the gateway fetches, per user and per client address, because the user
  // chooses the address that the gateway connects to.
  client_documents: { max: () => 20, windowSeconds: 3600, written: 'before_the_response' },
  client_documents_of_address: { max: () => 60, windowSeconds: 3600, written: 'before_the_response' },
  // Second-factor attempts per pre-auth token, and wrong ones per user.
  second_factor_tries: { max: () => 5, windowSeconds: 3600, written: 'before_the_response' },
  wrong_second_factors: wrongTries(30),
  // Renewals at the provider per cookie of a page, because a provider may end a sign-in whose refresh token
  // is used twice.
  page_renewals: { max: () => 1, windowSeconds: 10, written: 'within_a_second' },
  // Values that are valid once and expire within the hour: a state, a code, the last step of a sign-in, an ID
  // token. They are remembered for longer, because the clock of an issuer can be ahead.
  single_use: { max: () => 1, windowSeconds: 7200, written: 'before_the_response', refundable: true },
} satisfies Record<string, Limit>;

export type LimitName = keyof typeof LIMITS;
/** Refused requests by limit. */
export type Refusals = Partial<Record<LimitName, number>>;
export type LimitTable = Record<LimitName, Limit>;
