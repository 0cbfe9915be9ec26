/** What a host failure means for the job that caused it. */
export type HostFailureClass =
  /** Nothing was changed permanently and an immediate retry is pointless: the client gets the failure. */
  | 'refused'
  /** May pass without anybody's action: the job is retried. */
  | 'transient'
  /** Will not pass: the job fails and what it made is removed. */
  | 'permanent';

/** Every failure that can come over the link, with its class. */
export const HOST_FAILURES = {
  SOURCE_BUSY: 'refused',
  TABLE_NOT_FOUND: 'refused',
  /** Only from agents of the previous release, as `ROW_CHANGED`: the present ones list conflicts. */
  ROW_NOT_FOUND: 'refused',
  COLUMN_NOT_FOUND: 'refused',
  /** The cell has another value than the client expected. */
  ROW_CHANGED: 'refused',
  /** The named columns are not a unique key, so they do not identify a row. */
  KEY_NOT_UNIQUE: 'refused',
  /** PostgreSQL rejected a statement in a tenant's database; `sqlstate` and message are PostgreSQL's. */
  STATEMENT_REFUSED: 'refused',
  /** PostgreSQL refused the login of a branch, for a reason of the login; `sqlstate` and message say which. */
  LOGIN_REFUSED: 'refused',
  /** A statement or a comparison took longer than it may, or waited for a lock. It was rolled back. */
  TIME_LIMIT_REACHED: 'refused',
  /**
   * The source was made with another version of a collation than the libraries of the host have, so PostgreSQL refuses
   * to clone it.
   */
  COLLATION_OUTDATED: 'refused',
  SOURCE_MISSING: 'permanent',
  /**
   * The database name still belongs to another branch whose drop is unfinished, or to an unknown database.
   */
  DATABASE_NAME_HELD: 'transient',
  PROOF_FAILED: 'transient',
  POSTGRES_UNAVAILABLE: 'transient',
  POOLER_UNAVAILABLE: 'transient',
  /** A server still applies its previous rules or entries after a reload. */
  RULES_NOT_APPLIED: 'transient',
  HOST_BUSY: 'transient',
  /** The project itself has too many operations under way. */
  PROJECT_BUSY: 'transient',
  HOST_FULL: 'permanent',
  INVALID_CALL: 'permanent',
  INTERNAL: 'transient',
  /** Made at the edge: no agent is linked, or its link was lost during the call. */
  HOST_UNAVAILABLE: 'transient',
  /** Made at the edge: the agent is of the previous release and does not know the operation. */
  HOST_UPGRADE_REQUIRED: 'refused',
  /** No reply before the operation's deadline (made at the edge), or the end of a transaction is unknown. */
  HOST_TIMEOUT: 'transient',
} as const satisfies Record<string, HostFailureClass>;

export type HostFailureCode = keyof typeof HOST_FAILURES;

/** `message` is for operators and jobs: it says what is wrong and never contains a password. */
export interface HostFailure {
  code: HostFailureCode;
  message: string;
  /** PostgreSQL's error code, of a `STATEMENT_REFUSED` or `LOGIN_REFUSED`. */
  sqlstate?: string | undefined;
  /** Index of the refused one of several changes. */
  change?: number | undefined;
  /** Index of the refused one of several statements. */
  statement?: number | undefined;
  /** Path of the invalid parameter of the call, such as `filter.0.value`. */
  path?: string | undefined;
}
