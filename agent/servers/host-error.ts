import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';

/** An operation's failure, as it is reported to the edge and to a shell. */
export class HostError extends Error {
  override readonly name = 'HostError';
  readonly code: HostFailureCode;
  readonly sqlstate: string | undefined;
  readonly change: number | undefined;

  /**
   * @param message what is wrong, for operators; never contains a password
   * @param sqlstate of a `STATEMENT_REFUSED`
   * @param change index of the refused one of several changes
   */
  constructor(code: HostFailureCode, message: string, sqlstate?: string, change?: number) {
    super(message);
    this.code = code;
    this.sqlstate = sqlstate;
    this.change = change;
  }
}
