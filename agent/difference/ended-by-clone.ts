import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';

/** A clone of a database ends the sessions that compare it, in `emptyDatabase`: they can be repeated. */
export class EndedByCloneError extends HostError {
  constructor() {
    super('HOST_BUSY', 'a clone of the branch has ended the comparison');
  }
}

/** SQLSTATE `admin_shutdown`. */
const ENDED = '57P01';
/** Messages of `pg` at the next statement of a session that was idle when it was ended. */
const ENDED_WHILE_IDLE = /^(?:Connection terminated|Client has encountered)/;

/** A server that was stopped gives the same errors, and the next attempt says that it is away. */
export const isEndedByClone = (error: unknown): boolean =>
  error instanceof EndedByCloneError ||
  sqlState(error) === ENDED ||
  (error instanceof Error && ENDED_WHILE_IDLE.test(error.message));
