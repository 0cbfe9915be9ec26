import { uptime } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { MemberState } from '../../shared/protocol/standby.ts';
import type { OwnSession, Pool } from '../postgres/connect.ts';
import type { AgentSettings } from '../process/settings.ts';
import { openReplication, type Primary, positionOf } from './replication.ts';

const SAMPLE_EVERY_MS = 1_000;
const ASK_AGAIN_AFTER_MS = 2_000;
/** A standby that is further behind forgets when the primary was where, and reports the next sample that it knows. */
const SAMPLES_MAX = 3_600;
/**
 * Commits of one second can be in another order than their times, and clocks differ a little. Those of a session with
 * `synchronous_commit = off` are in the WAL that the primary reports after three times wal_writer_delay, 0.6 s.
 */
const MARGIN_MS = 1_000;

/** Where the primary's WAL ended at a time by the clock of this host. */
interface Sample {
  at: number;
  position: number;
}

/**
 * How far a standby is. It asks the primary every second where its WAL ends. What was confirmed to a client before the question
 * is in the WAL before the answer, so all of it is here once that position is replayed.
 */
export class Replica {
  readonly #settings: AgentSettings;
  readonly #postgres: Pool;
  /** Not replayed yet, oldest first. */
  #waiting: Sample[] = [];
  #replayed: Sample | null = null;
  #newest: Sample | null = null;
  #position: number | null = null;
  #isAway = true;
  /** Seconds since the machine was started, when the primary answered last. */
  #heardAt = 0;
  #stopped = new AbortController();

  constructor(settings: AgentSettings, postgres: Pool) {
    this.#settings = settings;
    this.#postgres = postgres;
  }

  /** Samples until `signal` or `stop`. Never throws. */
  async run(primary: Primary, signal: AbortSignal): Promise<void> {
    const until = AbortSignal.any([signal, this.#stopped.signal]);
    let session: OwnSession | null = null;
    let askAfter = 0;
    while (!until.aborted) {
      const begun = performance.now();
      if (!session && begun >= askAfter) {
        session = await openReplication(this.#settings, primary).catch(() => null);
        askAfter = begun + ASK_AGAIN_AFTER_MS;
      }
      if (session && !(await this.#sample(session).catch(() => false))) {
        void session.end().catch(() => {});
        session = null;
      }
      this.#isAway = session === null;
      await this.position().catch(() => null);
      await sleep(SAMPLE_EVERY_MS, undefined, { signal: until }).catch(() => {});
    }
    await session?.end().catch(() => {});
  }

  stop(): void {
    this.#stopped.abort();
  }

  async #sample(session: OwnSession): Promise<boolean> {
    const at = Date.now();
    const asked = session.query<{ xlogpos: string }>('IDENTIFY_SYSTEM');
    const answer = await Promise.race([asked, sleep(ASK_AGAIN_AFTER_MS, null, { ref: false })]);
    const position = answer?.rows[0]?.xlogpos;
    if (position === undefined) return false;
    this.#newest = { at, position: positionOf(position) };
    this.#heardAt = uptime();
    this.#waiting.push(this.#newest);
    if (this.#waiting.length > SAMPLES_MAX) this.#waiting.splice(1, 1);
    return true;
  }

  /** Replayed position of the WAL, in bytes. @throws Error when PostgreSQL is away */
  async position(): Promise<number | null> {
    const { rows } = await this.#postgres.query<{ lsn: string | null }>(
      'SELECT pg_last_wal_replay_lsn()::text AS lsn',
    );
    const lsn = rows[0]?.lsn ?? null;
    this.#position = lsn === null ? null : positionOf(lsn);
    const position = this.#position;
    if (position === null) return null;
    while (this.#waiting[0] && this.#waiting[0].position <= position)
      this.#replayed = this.#waiting.shift() ?? null;
    return position;
  }

  /** WAL that the primary had and that is not replayed here, in bytes; null: not known. */
  get #missing(): number | null {
    return this.#newest && this.#position !== null
      ? Math.max(0, this.#newest.position - this.#position)
      : null;
  }

  lag(): Pick<MemberState, 'lag_bytes' | 'lag_seconds'> {
    const { at } = this.#replayed ?? {};
    return {
      lag_bytes: this.#isAway ? null : this.#missing,
      lag_seconds: at === undefined ? null : Math.max(0, Date.now() - at) / 1000,
    };
  }

  unheard(): MemberState['unheard'] {
    const bytes = this.#missing;
    if (!this.#isAway || bytes === null) return null;
    return { seconds: Math.max(0, uptime() - this.#heardAt), bytes };
  }

  /** Everything that the primary had confirmed until then is replayed here; null: not known. */
  async survivedUntil(): Promise<Date | null> {
    await this.position();
    if (this.#replayed) return floor(this.#replayed.at - MARGIN_MS);
    const { rows } = await this.#postgres.query<{ at: Date | null }>(
      'SELECT pg_last_xact_replay_timestamp() AS at',
    );
    const at = rows[0]?.at;
    return at ? floor(at.getTime() - MARGIN_MS) : null;
  }
}

/** The second that has ended by then. */
const floor = (at: number) => new Date(Math.floor(at / 1000) * 1000);
