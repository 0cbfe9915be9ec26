import type { HostFailure, HostFailureCode } from '../../shared/protocol/host-failures.ts';

type Details = Omit<HostFailure, 'code' | 'message'>;

/** An operation's failure, as it is reported to the edge and to a shell. */
export class HostError extends Error implements HostFailure {
  override readonly name = 'HostError';
  readonly code: HostFailureCode;
  readonly sqlstate: string | undefined;
  readonly change: number | undefined;
  readonly statement: number | undefined;
  readonly path: string | undefined;

  /** @param message what is wrong, for operators; never contains a password */
  constructor(code: HostFailureCode, message: string, { sqlstate, change, statement, path }: Details = {}) {
    super(message);
    this.code = code;
    this.sqlstate = sqlstate;
    this.change = change;
    this.statement = statement;
    this.path = path;
  }
}

/**
 * Runs a check of the parameter at `path`. Its failure gets that path, before the path that it has within it.
 */
export function ofParameter<T>(path: string, check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw error instanceof HostError ? within(path, error) : error;
  }
}

/** The failure with its path within the parameter at `path`. */
export const within = (path: string, { code, message, ...details }: HostError): HostError =>
  new HostError(code, message, {
    ...details,
    path: details.path === undefined ? path : `${path}.${details.path}`,
  });
