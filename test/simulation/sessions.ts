import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import type { Credentials } from '../support/api.ts';
import { connect } from '../support/database.ts';

const LOGS_IN_WITHIN_MS = 3_000;
const ENDS_WITHIN_MS = 15_000;
const POLL_EVERY_MS = 100;
const RESPONDS_WITHIN_MS = 1_000;

/** Open sessions of one branch, one per port, whose access is about to be revoked. */
export class Sessions {
  readonly #open: { port: string; client: pg.Client }[];

  private constructor(open: { port: string; client: pg.Client }[]) {
    this.#open = open;
  }

  /** Opens the sessions that are possible: none while a server is down or the passwords are unknown. */
  static async open(branch: { credentials: Credentials | null } | undefined): Promise<Sessions> {
    const credentials = branch?.credentials;
    if (!credentials) return new Sessions([]);
    const urls = { pooled: credentials.database_url, direct: credentials.direct_url };
    const opened = await Promise.all(
      Object.entries(urls).map(async ([port, url]) => {
        try {
          return [{ port, client: await logIn(url) }];
        } catch {
          return [];
        }
      }),
    );
    return new Sessions(opened.flat());
  }

  /** @returns the ports whose session still responds after `ENDS_WITHIN_MS` */
  async survivors(): Promise<string[]> {
    const deadline = Date.now() + ENDS_WITHIN_MS;
    const outlived = await Promise.all(
      this.#open.map(async ({ port, client }) => {
        for (;;) {
          const state = await stateOf(client);
          if (state === 'ended') return [];
          if (state === 'alive' && Date.now() > deadline) return [port];
          // A silent session may be frozen with its server, so it is checked again at the end.
          if (state === 'silent' && Date.now() > deadline) return [];
          await sleep(POLL_EVERY_MS);
        }
      }),
    );
    return outlived.flat();
  }

  async close(): Promise<void> {
    await Promise.all(
      this.#open.map(({ client }) =>
        Promise.race([client.end().catch(() => {}), sleep(RESPONDS_WITHIN_MS, undefined, { ref: false })]),
      ),
    );
  }
}

/** Logs in and runs a statement, because the pooler logs in to the server only then. */
async function logIn(url: string): Promise<pg.Client> {
  const client = await connect(url, { connectionTimeoutMillis: LOGS_IN_WITHIN_MS });
  const state = await stateOf(client);
  if (state === 'alive') return client;
  await client.end().catch(() => {});
  throw new Error(`the session is ${state}`);
}

const stateOf = (client: pg.Client): Promise<'alive' | 'ended' | 'silent'> =>
  Promise.race([
    client.query('select 1').then(
      () => 'alive' as const,
      () => 'ended' as const,
    ),
    sleep(RESPONDS_WITHIN_MS, 'silent' as const, { ref: false }),
  ]);
