import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';

/** An operation that did not succeed, as the edge and the person at the shell are told it. */
export class HostError extends Error {
  override readonly name = 'HostError';
  readonly code: HostFailureCode;
  readonly sqlstate: string | undefined;

  /**
   * @param message what is wrong, for operators; never a password
   * @param sqlstate of a `STATEMENT_REFUSED`
   */
  constructor(code: HostFailureCode, message: string, sqlstate?: string) {
    super(message);
    this.code = code;
    this.sqlstate = sqlstate;
  }
}
