import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { SNAPSHOT_DATABASE, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import type { MethodResult } from '../../shared/protocol/operations.ts';
import { type CloneHost, createClone, createUnusedClone } from '../cloning/create-clone.ts';
import type { Pool, Queryable, Session } from '../postgres/connect.ts';
import { takeLock } from '../postgres/locks.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import type { OnProgress } from '../process/progress.ts';
import { dropSnapshot, readStanding } from './snapshot-databases.ts';
import type { Spares } from './spares.ts';
import { presentEnd, WalCursor } from './wal-cursor.ts';

/**
 * Standing snapshots: clones of branches that nobody writes to, for the next branches of them. As long as the
 * write-ahead log has no change of the branch, its snapshot has the same content, no client is held and no session is
 * ended, and the snapshot has spares. They belong to the running agent, as spares do.
 */

/** The parts of the host that clone by standing snapshots. */
export interface StandingHost extends CloneHost {
  sessions: Pool;
  spares: CloneHost['spares'] & Pick<Spares, 'dropOf'>;
  standing: Standing;
  log: Log;
}

interface StandingSnapshot {
  id: string;
  /** The database of the branch. */
  oid: string;
  /** Position in the log before the copy. */
  since: number;
  usedAt: number;
}

/** A clone that is asked for, and the database that it copies. */
interface StandingClone {
  project_id: string;
  name: string;
  source: string;
  busy_wait: number;
}

const CHECK_EVERY_MS = 1_000;
/** A branch gets a snapshot with the second creation in this time. */
const REPEATED_MS = 60_000;
/** A branch that was changed in this time gets none. */
const QUIET_MS = 2_000;
/** Another one is tried after this time: sessions that end may write too. */
const AGAIN_MS = 30_000;
const UNUSED_AFTER_MS = 600_000;
/** A creation reads no more of the log before it clones instead. */
const READ_AT_ONCE = 2 * 2 ** 20;
/** The cursor of a host that writes more than it can follow begins again. */
const READ_BEHIND = 64 * 2 ** 20;
/** The share of the time for which the log is read. */
const REST = 4;
const OF_HOST = 32;
const OF_PROJECT = 4;
/** The limit of files is that of spares. */
const FILES_MAX = 2_000;
const DATABASE_GONE = '3D000';
/** The init fork of an unlogged table or index, of which the log says nothing. */
const UNLOGGED = /_init(\.\d+)?$/;

export class Standing {
  /** The key is the name of the branch's database. */
  readonly #snapshots = new Map<string, StandingSnapshot>();
  /** When live databases were cloned last, and when a snapshot of them was tried. */
  readonly #sources = new Map<string, { project_id: string; clonedAt: number; triedAt: number }>();
  readonly #cursor = new WalCursor();
  /** Where the log ended at each of the last reads. */
  #ends: { at: number; end: number }[] = [];
  #isSwept = false;
  #restUntil = 0;
  readonly #now: () => number;
  /** Branches that were made by them. */
  taken = 0;

  /** @param now milliseconds */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  get count(): number {
    return this.#snapshots.size;
  }

  /**
   * Clones a branch: its standing snapshot, if it has an unchanged one, or itself. A branch that is cloned repeatedly gets
   * a snapshot by the clone that holds its clients anyway.
   * @throws HostError as `createClone`
   */
  async clone(
    host: StandingHost,
    session: Session,
    clone: StandingClone,
    onProgress?: OnProgress,
  ): Promise<MethodResult<'branch.clone'>> {
    const { name, source, busy_wait } = clone;
    const live = () => createClone(host, session, { name, source, busy_wait }, onProgress);
    if (host.cloneMethod !== 'reflink' || SNAPSHOT_DATABASE.test(source)) return live();
    const oid = await oidOf(session, source);
    const known = await this.#unchanged(session, source, oid);
    if (known)
      try {
        const of = { name, source: snapshotDatabaseName(known.id), busy_wait };
        const result = await createClone(host, session, of);
        this.taken += 1;
        return result;
      } catch (error) {
        if (!isMissing(error)) throw error;
        this.#snapshots.delete(source);
      }
    const isDue = oid !== null && (await this.#isDue(host, clone, oid));
    this.#note(clone);
    const made = isDue ? await this.#make(host, session, clone, oid, onProgress) : null;
    return made ?? live();
  }

  /** Reads the log, and drops snapshots whose branch has changed. */
  async keep(host: StandingHost): Promise<void> {
    if (!this.#isSwept) await this.#sweep(host);
    const now = this.#now();
    for (const [source, { clonedAt }] of this.#sources)
      if (now - clonedAt > UNUSED_AFTER_MS) this.#sources.delete(source);
    if (this.#sources.size === 0 && this.#snapshots.size === 0) {
      this.#cursor.end();
      return;
    }
    if (now < this.#restUntil) return;
    await this.#follow(host.postgres);
    const took = this.#now() - now;
    this.#restUntil = this.#now() + REST * took;
    for (const [source, one] of this.#snapshots) {
      const isCurrent = (await oidOf(host.postgres, source)) === one.oid;
      const isUsed = this.#now() - one.usedAt <= UNUSED_AFTER_MS;
      if (!isCurrent || !isUsed || !this.#cursor.isUnchanged(one.oid, one.since))
        await this.#drop(host, source);
    }
  }

  /** Makes room: drops all of them. @returns whether there was one */
  async dropAll(host: StandingHost): Promise<boolean> {
    const sources = [...this.#snapshots.keys()];
    for (const source of sources) await this.#drop(host, source);
    return sources.length > 0;
  }

  async #unchanged(db: Queryable, source: string, oid: string | null): Promise<StandingSnapshot | null> {
    const known = this.#snapshots.get(source);
    if (!known || known.oid !== oid) return null;
    // A commit that was acknowledged before this call is before this end.
    const end = await presentEnd(db);
    if (!(await this.#cursor.read(db, end, READ_AT_ONCE))) return null;
    if (!this.#cursor.isUnchanged(known.oid, known.since)) return null;
    known.usedAt = this.#now();
    this.#note({ source });
    return known;
  }

  #note({
    source,
    project_id = this.#sources.get(source)?.project_id ?? '',
  }: {
    source: string;
    project_id?: string;
  }) {
    const triedAt = this.#sources.get(source)?.triedAt ?? Number.NEGATIVE_INFINITY;
    this.#sources.set(source, { project_id, clonedAt: this.#now(), triedAt });
  }

  /** @returns whether the branch gets a snapshot by this clone */
  async #isDue(
    { settings }: StandingHost,
    { source, project_id }: StandingClone,
    oid: string,
  ): Promise<boolean> {
    const now = this.#now();
    const before = this.#sources.get(source);
    const ofProject = [...this.#snapshots.keys()].filter(
      (one) => one !== source && this.#sources.get(one)?.project_id === project_id,
    );
    const quiet = this.#ends.findLast(({ at }) => now - at >= QUIET_MS);
    if (
      !before ||
      now - before.clonedAt > REPEATED_MS ||
      now - before.triedAt < AGAIN_MS ||
      this.#snapshots.has(source) ||
      this.#snapshots.size >= OF_HOST ||
      ofProject.length >= OF_PROJECT ||
      !quiet ||
      !this.#cursor.isUnchanged(oid, quiet.end)
    )
      return false;
    const files = await readdir(join(settings.PGDATA_DIR, 'base', oid));
    return files.length <= FILES_MAX && !files.some((file) => UNLOGGED.test(file));
  }

  /** @returns null if there is no room for a snapshot, which may be more than a branch takes */
  async #make(
    host: StandingHost,
    session: Session,
    { project_id, name, source, busy_wait }: StandingClone,
    oid: string,
    onProgress: OnProgress | undefined,
  ): Promise<MethodResult<'branch.clone'> | null> {
    const known = this.#sources.get(source);
    if (known) known.triedAt = this.#now();
    const id = crypto.randomUUID();
    const snapshot = snapshotDatabaseName(id);
    // Nobody drops it before the branch is made.
    await takeLock(session, `clone:${id}`);
    const since = await presentEnd(session);
    await session.query(
      `INSERT INTO snapshot (snapshot_id, project_id, branch_id, source, kind)
       SELECT $1, $2, branch_id, $3, 'standing' FROM branch WHERE database = $3 AND project_id = $2`,
      [id, project_id, source],
    );
    host.log('standing.begun', { database: snapshot, source });
    let result: MethodResult<'branch.clone'>;
    try {
      result = await createClone(
        host,
        session,
        { name: snapshot, source, busy_wait, closed: true },
        onProgress,
      );
    } catch (error) {
      await session.query('DELETE FROM snapshot WHERE snapshot_id = $1', [id]);
      if (error instanceof HostError && error.code === 'HOST_FULL') return null;
      throw error;
    }
    this.#snapshots.set(source, { id, oid, since, usedAt: this.#now() });
    const began = performance.now();
    await createUnusedClone(host, session, { name, source: snapshot });
    return { ...result, clone_ms: result.clone_ms + performance.now() - began };
  }

  async #drop(host: StandingHost, source: string): Promise<void> {
    const known = this.#snapshots.get(source);
    if (!known) return;
    this.#snapshots.delete(source);
    await this.#dropSnapshot(host, known.id);
  }

  async #dropSnapshot(host: StandingHost, snapshot_id: string): Promise<void> {
    try {
      await dropSnapshot(host, { snapshot_id });
      host.log('standing.dropped', { database: snapshotDatabaseName(snapshot_id) });
    } catch (error) {
      this.#isSwept = false;
      throw error;
    }
  }

  /** Drops those of an earlier agent process, and those that could not be dropped. */
  async #sweep(host: StandingHost): Promise<void> {
    const known = new Set([...this.#snapshots.values()].map(({ id }) => id));
    this.#isSwept = true;
    for (const id of await readStanding(host.postgres))
      if (!known.has(id)) await this.#dropSnapshot(host, id);
  }

  async #follow(db: Queryable): Promise<void> {
    if (this.#cursor.at === null) await this.#cursor.begin(db);
    const end = await presentEnd(db);
    const isRead = await this.#cursor.read(db, end, READ_BEHIND);
    const now = this.#now();
    const last = this.#ends.findLastIndex(({ at }) => now - at >= QUIET_MS);
    this.#ends = [...this.#ends.slice(Math.max(0, last)), { at: now, end }];
    if (isRead) return;
    // The part that was missed may have changed any of them.
    this.#ends = [];
    this.#cursor.end();
  }
}

/** The snapshot was dropped meanwhile. */
const isMissing = (error: unknown): boolean =>
  sqlState(error) === DATABASE_GONE || (error instanceof HostError && error.code === 'SOURCE_MISSING');

async function oidOf(db: Queryable, database: string): Promise<string | null> {
  const { rows } = await db.query<{ oid: string }>('SELECT oid::text FROM pg_database WHERE datname = $1', [
    database,
  ]);
  return rows[0]?.oid ?? null;
}

/** The loop runs only where a clone shares its blocks. */
export async function runStandingLoop(host: StandingHost, signal: AbortSignal): Promise<void> {
  if (host.cloneMethod !== 'reflink') return;
  const keep = () => host.standing.keep(host);
  await runLoop(keep, { every: CHECK_EVERY_MS, signal, log: host.log, failed: 'standing.not_kept' });
}
