import { AGENT_ADDRESS, type Pool } from '../postgres/connect.ts';
import { endSessions } from '../postgres/sessions.ts';
import { repeat } from '../process/loops.ts';
import { type AdmittingHost, admitClients, loginOf, type SqlClient, type SqlError } from './admit-client.ts';

const RECHECK_EVERY_MS = 1_000;
/** The wait for signalled sessions, equal to that of a change of access for the ports. */
const ENDING = { within: 4_000 };

/** A client that uses a login. */
export interface OpenClient {
  client: SqlClient;
  end: (error: SqlError) => void;
  /** The process of its direct session with PostgreSQL; null without one. */
  backend?: () => number | null;
}

interface CheckingHost extends AdmittingHost {
  postgres: Pool;
}

/** The clients of SQL over HTTP and WebSocket that are logged in, and those that are logging in. */
export class OpenClients {
  readonly #open = new Set<OpenClient>();

  /** @returns a function to call when the client has ended */
  add(open: OpenClient): () => void {
    this.#open.add(open);
    return () => this.#open.delete(open);
  }

  get size(): number {
    return this.#open.size;
  }

  /** Rules and blocks that another process stores are seen within a second, as at the ports. Never throws. */
  watch(host: CheckingHost, signal: AbortSignal): Promise<void> {
    return repeat(() => this.recheck(host).catch(() => {}), RECHECK_EVERY_MS, signal);
  }

  /** Ends the clients that are not admitted any more. Returns when their direct sessions have ended. */
  async recheck(host: CheckingHost): Promise<void> {
    const open = [...this.#open];
    if (open.length === 0) return;
    const decisions = await admitClients(
      host,
      open.map(({ client }) => client),
      { isOpen: true },
    );
    const backends: { pid: number; login: string }[] = [];
    for (const [at, { client, end, backend }] of open.entries()) {
      const decision = decisions[at];
      if (decision?.outcome !== 'refused') continue;
      const pid = backend?.();
      if (pid) backends.push({ pid, login: loginOf(client) });
      end(decision.error);
    }
    // A statement would run on for seconds after its client is gone.
    if (backends.length > 0)
      await endSessions(
        host.postgres,
        `FROM pg_stat_activity JOIN unnest($1::int[], $2::text[]) AS ended (pid, login) USING (pid)
         WHERE usename = login AND client_addr = $3`,
        [backends.map(({ pid }) => pid), backends.map(({ login }) => login), AGENT_ADDRESS],
        ENDING,
      );
  }
}
