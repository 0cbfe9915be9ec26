import { rename, writeFile } from 'node:fs/promises';
import type { SyncState } from '../../shared/protocol/durability.ts';
import { identifier, literal, type Pool } from '../postgres/connect.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { standbyFiles } from './stored-member.ts';

const IN_EFFECT = { within: 10_000, every: 50 };
/** A commit that waits for the standby holds up commits with NOTIFY in every database. */
const NOTIFY_HELD_UP_FOR = '1 second';

/** The lock that a commit with NOTIFY holds until it is confirmed: of no database, in every database. */
const NOTIFY_LOCK =
  "locktype = 'object' AND database = 0 AND classid = 'pg_database'::regclass AND objid = 0";

interface Seen {
  names: string;
  is_wanted: boolean;
  is_streaming: boolean;
  is_confirming: boolean;
}

/**
 * Which standby confirms the commits of projects with the durability `sync`. PostgreSQL names one only while there is such a
 * project, and only after the standby has caught up once: commits would wait for the whole copy otherwise.
 */
export class SynchronousCommits {
  readonly #settings: AgentSettings;
  readonly #postgres: Pool;
  #turn: Promise<unknown> = Promise.resolve();

  constructor(settings: AgentSettings, postgres: Pool) {
    this.#settings = settings;
    this.#postgres = postgres;
  }

  /**
   * Brings PostgreSQL to what the projects want.
   * @param login of the standby, also the name under which it receives WAL; null: there is none, or it is copied again
   */
  poll(login: string | null): Promise<SyncState> {
    const polled = this.#turn.catch(() => {}).then(() => this.#poll(login));
    this.#turn = polled;
    return polled;
  }

  async #poll(login: string | null): Promise<SyncState> {
    const seen = await this.#read(login);
    const wanted = login === null ? '' : identifier(login);
    const isNamed = wanted !== '' && seen.names === wanted;
    const names = seen.is_wanted && (isNamed || seen.is_streaming) ? wanted : '';
    if (names !== seen.names) await this.#name(names, login);
    if (names === '') return 'off';
    await this.#endBlockers();
    return (isNamed ? seen : await this.#read(login)).is_confirming ? 'confirming' : 'waiting';
  }

  async #read(login: string | null): Promise<Seen> {
    const { rows } = await this.#postgres.query<Seen>(
      `SELECT current_setting('synchronous_standby_names') AS names,
              EXISTS (SELECT FROM project WHERE durability = 'sync') AS is_wanted,
              coalesce(bool_or(state = 'streaming'), false) AS is_streaming,
              coalesce(bool_or(state = 'streaming' AND sync_state = 'sync'), false) AS is_confirming
       FROM pg_stat_replication WHERE usename = $1 AND application_name = $1`,
      [login],
    );
    return rows[0] as Seen;
  }

  async #name(names: string, login: string | null): Promise<void> {
    const file = standbyFiles(this.#settings).settings;
    // All other commits are confirmed without it.
    const text =
      names === '' ? '' : `synchronous_commit = local\nsynchronous_standby_names = ${literal(names)}\n`;
    await writeFile(`${file}.new`, text, { mode: 0o600 });
    await rename(`${file}.new`, file);
    await this.#postgres.query('SELECT pg_reload_conf()');
    const isInEffect = async () => {
      const seen = await this.#read(login);
      return seen.names === names && (names === '' || seen.is_confirming || !seen.is_streaming);
    };
    if (!(await pollUntil(isInEffect, IN_EFFECT)))
      throw new HostError('INTERNAL', 'PostgreSQL does not read its configuration again');
  }

  /** The commits are on this host, but their clients get no confirmation. */
  async #endBlockers(): Promise<void> {
    await this.#postgres.query(
      `SELECT pg_terminate_backend(pid) FROM pg_locks AS held JOIN pg_stat_activity USING (pid)
       WHERE ${NOTIFY_LOCK} AND granted AND wait_event = 'SyncRep' AND EXISTS (
         SELECT FROM pg_locks AS waiting
         WHERE ${NOTIFY_LOCK} AND NOT granted AND waitstart < clock_timestamp() - interval '${NOTIFY_HELD_UP_FOR}')`,
    );
  }
}
