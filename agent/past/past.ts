import { existsSync } from 'node:fs';
import { mkdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { isMainDatabase } from '../../shared/branch/database-name.ts';
import type { Moment } from '../../shared/moment.ts';
import type { CloneMethod } from '../cloning/create-clone.ts';
import type { Pool } from '../postgres/connect.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { ARCHIVE_WAL } from '../servers/archive-command.ts';
import { diskSize, freeBytes } from '../volumes/volumes.ts';
import { archivedBytes, readArchived } from './archive.ts';
import {
  type BaseCopy,
  dropOldest,
  dropUnneeded,
  keptBytes,
  readBaseCopies,
  removeFolder,
  SHORTENED,
  usableCopies,
} from './base-copies.ts';
import { Bisections } from './bisections.ts';
import { pastFolders } from './folders.ts';
import { makeBaseCopy } from './make-base-copy.ts';
import { recoveryHours } from './recovery-hours.ts';
import { RecoveryTurns } from './recovery-turns.ts';
import { isSegment, segmentNumber } from './segments.ts';

/**
 * The past of a host: its base copies and the archived WAL since them, within a time and a share of the disk. Everything
 * that is known of it is read from the folder, so that another process, or a restart, finds the same.
 */

interface PastHost {
  settings: AgentSettings;
  postgres: Pool;
  cloneMethod: CloneMethod;
  log: Log;
}

const HOUR_MS = 3_600_000;
const MB = 2 ** 20;
const LOOK_EVERY_MS = 30_000;
const MEASURE_EVERY_MS = 600_000;

/** As `doctor` and the metrics show it. */
export interface PastState {
  /** Hours that are wanted; 0: none. */
  hours: number;
  /** False: no agent has tried to make a base copy yet, as on a host that joins. */
  isBegun: boolean;
  /** The earliest time that can be recovered; null: none. */
  from: Date | null;
  /** Base copies that lead to a time of the window. */
  copies: number;
  /** Bytes of the archived WAL. */
  archivedBytes: number;
  /** A copy of the window was dropped for want of room within the last window. */
  isShortened: boolean;
}

export class Past {
  readonly turns = new RecoveryTurns();
  readonly bisections: Bisections;
  /** Each commit before `until` is in the archive, and one after it: up to this segment. Null: not known. */
  archived: { until: Moment; segment: number } | null = null;
  readonly #host: PastHost;
  #measuredAt = Number.NEGATIVE_INFINITY;

  constructor(host: PastHost) {
    this.#host = host;
    this.bisections = new Bisections(host.settings);
  }

  get hours(): number {
    return recoveryHours(this.#host.settings, this.#host.cloneMethod);
  }

  /** How its files are copied. */
  get method(): CloneMethod {
    return this.#host.cloneMethod;
  }

  /** The base copies from which a time of the window can be recovered, oldest first. */
  async copies(): Promise<BaseCopy[]> {
    if (this.hours === 0) return [];
    const folders = pastFolders(this.#host.settings);
    const archived = await readArchived(folders);
    const usable = usableCopies(await readBaseCopies(folders), archived);
    const lost = await this.#lostSegment(archived);
    const numberOf = (name: string, bytes: number) => segmentNumber(name, bytes) ?? 0;
    return usable.filter(
      ({ segment, segment_bytes }) =>
        lost === null || numberOf(segment, segment_bytes) > numberOf(lost, segment_bytes),
    );
  }

  /** The last segment that PostgreSQL has archived, if a full volume has left it out: no later one shows the gap yet. */
  async #lostSegment(archived: readonly string[]): Promise<string | null> {
    const { rows } = await this.#host.postgres.query<{ last: string | null }>(
      // The rest of a time line is archived again with the next one.
      "SELECT left(last_archived_wal, 24) AS last FROM pg_stat_archiver WHERE last_archived_wal NOT LIKE '%.partial'",
    );
    const last = rows[0]?.last ?? '';
    return isSegment(last) && !archived.includes(last) ? last : null;
  }

  async state(): Promise<PastState> {
    const folders = pastFolders(this.#host.settings);
    const copies = await this.copies();
    const [oldest] = copies;
    return {
      hours: this.hours,
      isBegun: existsSync(folders.bases),
      from: oldest ? new Date(oldest.ended_at) : null,
      copies: copies.length,
      archivedBytes: await archivedBytes(folders),
      isShortened: await this.isShortened(),
    };
  }

  /** @returns whether a copy of the window was dropped for want of room within the last window */
  async isShortened(): Promise<boolean> {
    const { root } = pastFolders(this.#host.settings);
    const shortened = await stat(join(root, SHORTENED)).catch(() => null);
    return shortened !== null && Date.now() - shortened.mtimeMs < this.hours * HOUR_MS;
  }

  /** @throws as `makeBaseCopy` */
  async copyBase({ fast }: { fast: boolean }): Promise<BaseCopy> {
    return makeBaseCopy(this.#host, fast, await this.#readApart());
  }

  /**
   * The databases that are cloned most, those of `main`s, as far as half of the share has room for their copies, the smallest
   * first: each write to a block that a base copy shares makes a database more fragmented, and slower to clone.
   */
  async #readApart(): Promise<string[]> {
    const { postgres, settings, cloneMethod } = this.#host;
    if (cloneMethod !== 'reflink') return [];
    const { rows } = await postgres.query<{ oid: string; bytes: number }>(
      `SELECT oid::text, pg_database_size(oid)::float8 AS bytes FROM branch JOIN pg_database ON datname = database
       WHERE ${isMainDatabase('database')} ORDER BY bytes`,
    );
    // One from before the window stays, and a new one is made before the oldest goes.
    const copies = Math.ceil(this.hours / settings.BASE_COPY_HOURS) + 2;
    let left = (await this.#share()) / 2 / copies;
    return rows
      .filter(({ bytes }) => {
        left -= bytes;
        return left >= 0;
      })
      .map(({ oid }) => oid);
  }

  /** Bytes that base copies and archive may take. */
  async #share(): Promise<number> {
    const { settings } = this.#host;
    return ((await diskSize(pastFolders(settings).root)) * settings.PAST_DISK_PERCENT) / 100;
  }

  /** Keeps the window until `signal`. @param onChange the window begins at another time than before */
  async run(onChange: () => void, signal: AbortSignal): Promise<void> {
    const { log, settings } = this.#host;
    if (this.hours === 0) {
      await this.#forget();
      await rm(pastFolders(settings).drills, { recursive: true, force: true });
      return;
    }
    let known: string | null = null;
    const show = async () => {
      const [oldest] = await this.copies();
      const from = oldest?.ended_at ?? null;
      if (from !== known) log('past.window', { from, wanted_hours: this.hours });
      if (from !== known) onChange();
      known = from;
    };
    const look = () => this.#keep().finally(show);
    await mkdir(pastFolders(settings).root, { recursive: true, mode: 0o700 }).catch(() => {});
    await runLoop(look, {
      every: LOOK_EVERY_MS,
      signal,
      log,
      failed: 'past.not_kept',
      recovered: 'past.kept',
    });
  }

  /** Removes all copies and the log: the window was switched off, or they lead to no time. */
  async #forget(): Promise<void> {
    const folders = pastFolders(this.#host.settings);
    for (const { name } of await readBaseCopies(folders)) await removeFolder(`${folders.bases}/${name}`);
    if ((await readArchived(folders)).length > 0) await dropUnneeded(folders, []);
  }

  /** @throws Error with the reason for which there is no base copy */
  async #keep(): Promise<void> {
    const { settings, cloneMethod, log } = this.#host;
    const folders = pastFolders(settings);
    await this.#requireArchive();
    await this.#dropOld();
    const shortenWhile = async (isTooMuch: () => Promise<boolean>, reason: string) => {
      while ((await isTooMuch()) && (await dropOldest(folders))) log('past.shortened', { reason });
    };
    // Before a copy, which takes room too.
    await shortenWhile(() => this.lacksRoom(), 'disk');
    const newest = (await this.copies()).at(-1);
    const age = newest ? Date.now() - Date.parse(newest.ended_at) : Number.POSITIVE_INFINITY;
    if (age >= settings.BASE_COPY_HOURS * HOUR_MS) {
      // The old files lead to no time any more, and would leave no room for the log of the new copy.
      if (newest === undefined && (await this.lacksRoom(folders.wal))) await this.#forget();
      const began = performance.now();
      // Nobody waits for one that follows another.
      await this.copyBase({ fast: newest === undefined });
      log('past.base_copied', { duration_ms: Math.round(performance.now() - began) });
      this.#measuredAt = Number.NEGATIVE_INFINITY;
    }
    if (performance.now() - this.#measuredAt < MEASURE_EVERY_MS) return;
    const share = await this.#share();
    const taken = async () =>
      (await archivedBytes(folders)) +
      (await keptBytes(folders, settings.PGDATA_DIR, cloneMethod === 'reflink'));
    await shortenWhile(async () => (await taken()) > share, 'share');
    this.#measuredAt = performance.now();
  }

  /** @returns whether the disk has too little left for anything of the past */
  async lacksRoom(folder = pastFolders(this.#host.settings).root): Promise<boolean> {
    const free = await freeBytes(folder).catch(() => Number.POSITIVE_INFINITY);
    return free < 2 * this.#host.settings.MIN_FREE_DISK_MB * MB;
  }

  /** Drops what no time of the window needs: one copy from before its beginning stays. */
  async #dropOld(): Promise<void> {
    const folders = pastFolders(this.#host.settings);
    const since = Date.now() - this.hours * HOUR_MS;
    const usable = await this.copies();
    const needed = usable.filter(
      (_, at) => at === usable.length - 1 || Date.parse(usable[at + 1]?.ended_at ?? '') > since,
    );
    const names = new Set(needed.map(({ name }) => name));
    for (const { name } of await readBaseCopies(folders))
      if (!names.has(name) && usable.length > 0) await removeFolder(`${folders.bases}/${name}`);
    if (needed.length > 0) await dropUnneeded(folders, needed);
  }

  /** A base copy without the WAL since then is of no use. */
  async #requireArchive(): Promise<void> {
    const { rows } = await this.#host.postgres.query<{ mode: string; command: string }>(
      "SELECT current_setting('archive_mode') AS mode, current_setting('archive_command') AS command",
    );
    const { mode, command } = rows[0] ?? {};
    if (mode === 'off' || !command?.includes(ARCHIVE_WAL))
      throw new Error(
        'PostgreSQL does not archive its WAL for recoveries: run `branchgate-agent join` again, or set RECOVERY_WINDOW_HOURS to 0',
      );
  }
}
