import { AGENT_ADDRESS, type Queryable } from '../postgres/connect.ts';
import { type ClientLogin, readClientLogins } from '../postgres/sessions.ts';
import { repeat } from '../process/loops.ts';

/** A login takes a few round trips. */
const STALLED_AFTER_MS = 3_000;
const POLL_EVERY_MS = 1_000;

/** A login that stalls, with the branch that it is about. */
type Stalled = ClientLogin & { branch_id: string };

interface Listener {
  /** Called once for each stalled login. */
  onStalled: (login: Stalled) => void;
  /** Called after each poll with the error that prevented it, or null. */
  onPoll: (trouble: unknown) => void;
}

/**
 * Finds clients that do not respond to PostgreSQL's password challenge. Each takes a connection for up to
 * `authentication_timeout`, and PostgreSQL logs none that closes its connection before. PgBouncer logs every
 * attempt at its beginning.
 */
export class StalledLogins {
  /** Those that were reported and are still there. */
  #reported = new Set<string>();

  /** Polls until `signal` aborts. Never throws. */
  async follow(db: Queryable, signal: AbortSignal, { onStalled, onPoll }: Listener): Promise<void> {
    const poll = () =>
      this.poll(db).then(
        (stalled) => {
          for (const login of stalled) onStalled(login);
          onPoll(null);
        },
        (error) => onPoll(error),
      );
    await repeat(poll, POLL_EVERY_MS, signal);
  }

  /** Logins that have begun to stall since the last poll. */
  async poll(db: Queryable): Promise<Stalled[]> {
    const stalled = (await readClientLogins(db)).filter(isStalled);
    const before = this.#reported;
    this.#reported = new Set(stalled.map(keyOf));
    return stalled.filter((login) => !before.has(keyOf(login)));
  }
}

const isStalled = (login: ClientLogin): login is Stalled =>
  login.branch_id !== null &&
  login.isAuthenticating &&
  login.age > STALLED_AFTER_MS &&
  // The agent has counted it, for the client's own address.
  login.address !== AGENT_ADDRESS;

const keyOf = ({ pid, since }: ClientLogin) => `${pid} ${since}`;
