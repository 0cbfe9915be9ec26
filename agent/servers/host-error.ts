import type { HostFailureCode } from '../../shared/protocol/host-failures.ts';

/** An operation that did not succeed, as the edge and the person at the shell are told it. */
export class HostError extends Error {
  override readonly name = 'HostError';
  readonly code: HostFailureCode;

  /** @param message what is wrong, for operators; never a password */
  constructor(code: HostFailureCode, message: string) {
    super(message);
    this.code = code;
  }
}
