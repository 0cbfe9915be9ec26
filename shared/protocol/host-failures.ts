/** What becomes of a job when a host answers with a failure. */
export type HostFailureClass =
  /** Nothing was changed for good and trying again at once is pointless: tell the client. */
  | 'refused'
  /** May pass by itself: the saga tries again. */
  | 'transient'
  /** Will not pass: the job fails and what it made is removed. */
  | 'permanent';

/** Every failure that can come over the link, and its class. */
export const HOST_FAILURES = {
  SOURCE_BUSY: 'refused',
  TABLE_NOT_FOUND: 'refused',
  ROW_NOT_FOUND: 'refused',
  /** The cell holds another value than the client expected. */
  ROW_CHANGED: 'refused',
  /** The columns named as a key are none, so no row can be told from the others. */
  KEY_NOT_UNIQUE: 'refused',
  /** PostgreSQL refused a statement in a tenant's database; `sqlstate` and message are PostgreSQL's. */
  STATEMENT_REFUSED: 'refused',
  SOURCE_MISSING: 'permanent',
  /** The database name still belongs to another branch (its drop is not finished) or to nobody we know. */
  DATABASE_NAME_HELD: 'transient',
  PROOF_FAILED: 'transient',
  POSTGRES_UNAVAILABLE: 'transient',
  POOLER_UNAVAILABLE: 'transient',
  /** A server kept its old rules or entries although it was told to reload. */
  RULES_NOT_APPLIED: 'transient',
  HOST_BUSY: 'transient',
  HOST_FULL: 'permanent',
  INVALID_CALL: 'permanent',
  INTERNAL: 'transient',
  /** Made at the edge: no agent is linked, or its link was lost during the call. */
  HOST_UNAVAILABLE: 'transient',
  /** Made at the edge, no reply before the operation's deadline; or a tenant's statement took too long. */
  HOST_TIMEOUT: 'transient',
} as const satisfies Record<string, HostFailureClass>;

export type HostFailureCode = keyof typeof HOST_FAILURES;

/** `message` is for operators and jobs: it names what is wrong, never a password. */
export interface HostFailure {
  code: HostFailureCode;
  message: string;
  /** PostgreSQL's error code, of a `STATEMENT_REFUSED`. */
  sqlstate?: string | undefined;
}
