import { singleFlight } from '../../shared/single-flight.ts';
import type { Pool } from '../postgres/connect.ts';
import { temporaryBytes } from '../postgres/file-bytes.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { AgentSettings } from '../process/settings.ts';
import { readLogVolumes, readVolumes } from '../volumes/volumes.ts';
import {
  byBranch,
  type Finding,
  type Guard,
  type GuardedBranch,
  type Observation,
  type TenantSession,
} from './guard.ts';

/** Sizing a database reads the metadata of each of its files. Milliseconds. */
const SIZE_WITHIN = 2_000;

/** What the branches with sessions have on the disk at one instant. */
export interface DiskUse {
  /** Milliseconds of a monotonic clock. */
  at: number;
  /**
   * By branch: bytes of its database and of its temporary files. A branch that could not be measured is
   * missing.
   */
  files: Map<GuardedBranch, number>;
  /**
   * By session: its branch, and the bytes of WAL that it has reported, which it does between transactions.
   */
  wal: Map<string, { branch: GuardedBranch; bytes: number }>;
}

export async function readDiskUse(
  postgres: Pool,
  dataDir: string,
  sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>,
): Promise<DiskUse> {
  const temporary = await temporaryBytes(dataDir);
  const reported = await walByPid(postgres, [...sessions.values()].flat());
  const use: DiskUse = { at: performance.now(), files: new Map(), wal: new Map() };
  for (const [branch, own] of sessions) {
    const size = await databaseBytes(postgres, branch.database);
    const temp = own.reduce((sum, { pid }) => sum + (temporary.get(pid) ?? 0), 0);
    if (size !== null) use.files.set(branch, size + temp);
    for (const { pid, key } of own) {
      const bytes = reported.get(pid);
      if (bytes !== undefined) use.wal.set(key, { branch, bytes });
    }
  }
  return use;
}

/** Null for a database that is gone, or that a tenant has given too many files. */
async function databaseBytes(postgres: Pool, database: string): Promise<number | null> {
  const session = await postgres.connect();
  let isIntact = false;
  try {
    await session.query(`BEGIN; SET LOCAL statement_timeout = ${SIZE_WITHIN}`);
    const { rows } = await session.query<{ bytes: number }>('SELECT pg_database_size($1)::float8 AS bytes', [
      database,
    ]);
    await session.query('COMMIT');
    isIntact = true;
    return rows[0]?.bytes ?? null;
  } catch {
    return null;
  } finally {
    session.release(!isIntact);
  }
}

async function walByPid(postgres: Pool, sessions: readonly TenantSession[]): Promise<Map<number, number>> {
  const { rows } = await postgres.query<{ pid: number; bytes: number }>(
    `SELECT pid, wal_bytes::float8 AS bytes
     FROM unnest($1::int[]) AS pid CROSS JOIN pg_stat_get_backend_wal(pid) WHERE wal_bytes IS NOT NULL`,
    [sessions.map(({ pid }) => pid)],
  );
  return new Map(rows.map(({ pid, bytes }) => [pid, bytes]));
}

const MB = 2 ** 20;
/**
 * WAL that a branch at work writes: after each checkpoint it has whole pages. It is freed again, so only more
 * counts. Bytes a second.
 */
const USUAL_WAL = 4 * MB;

export interface Growth {
  branch: GuardedBranch;
  bytesPerSecond: number;
}

/** How fast each branch has taken space between two looks, the fastest first. */
function growthBetween(before: DiskUse, now: DiskUse): Growth[] {
  const seconds = (now.at - before.at) / 1000;
  const known = new Map([...before.files].map(([{ branch_id }, bytes]) => [branch_id, bytes]));
  const wal = walBetween(before, now);
  return [...now.files]
    .map(([branch, bytes]) => {
      const files = bytes - (known.get(branch.branch_id) ?? bytes);
      const written = Math.max(0, (wal.get(branch.branch_id) ?? 0) - USUAL_WAL * seconds);
      return { branch, bytesPerSecond: (Math.max(0, files) + written) / seconds };
    })
    .sort((one, other) => other.bytesPerSecond - one.bytesPerSecond);
}

/** By branch. A session that is new has written all of its WAL since. */
function walBetween(before: DiskUse, now: DiskUse): Map<string, number> {
  const written = new Map<string, number>();
  for (const [key, { branch, bytes }] of now.wal) {
    const since = bytes - (before.wal.get(key)?.bytes ?? 0);
    written.set(branch.branch_id, (written.get(branch.branch_id) ?? 0) + since);
  }
  return written;
}

const CHECK_EVERY_MS = 1_000;
/** A branch is blocked when it alone would fill what is left within this time. */
const FILLS_WITHIN_SECONDS = 60;
/** A branch that grows no faster is left alone, however little is free. Bytes a second. */
const SLOW = MB;
/** A server writes no log with less. */
const LOG_NEEDS = MB;

type ReadDiskUse = (sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>) => Promise<DiskUse>;

/** Free space. When one tenant fills a volume, nobody can write, and attempts are not logged any more. */
export class DiskSpace implements Guard {
  readonly name = 'disk';
  readonly reason = 'disk';
  readonly #settings: AgentSettings;
  readonly #log: Log;
  readonly #readUse: ReadDiskUse;
  readonly #low: TroubleLog;
  readonly #unwatched: TroubleLog;
  readonly #unmeasured: TroubleLog;
  #checkAt = 0;
  /** Null while there is enough space. */
  #use: DiskUse | null = null;
  #growth: Growth[] = [];

  constructor(settings: AgentSettings, log: Log, readUse: ReadDiskUse) {
    this.#settings = settings;
    this.#log = log;
    this.#readUse = readUse;
    this.#low = new TroubleLog(log);
    this.#unwatched = new TroubleLog(log);
    this.#unmeasured = new TroubleLog(log);
  }

  async check(server: Observation): Promise<Finding[]> {
    if (server.at < this.#checkAt) return [];
    this.#checkAt = server.at + CHECK_EVERY_MS;
    await this.#reportLogs();
    const free = await this.#lowestFree();
    if (free === null) {
      this.#use = null;
      return [];
    }
    const tooFast = Math.max(SLOW, free / FILLS_WITHIN_SECONDS);
    const growth = this.#takeGrowth();
    void this.#measure(byBranch(server.sessions));
    return growth
      .filter(({ bytesPerSecond }) => bytesPerSecond > tooFast)
      .map(({ branch, bytesPerSecond }) => ({
        sessions: [],
        branches: [branch],
        detail: { free_mb: Math.round(free / MB), mb_per_second: Math.round(bytesPerSecond / MB) },
      }));
  }

  /** Each growth counts once: its branch may have been blocked since. */
  #takeGrowth(): Growth[] {
    const growth = this.#growth;
    this.#growth = [];
    return growth;
  }

  /** Not awaited: it takes longer the more files tenants have, and the other watchdogs must run. */
  readonly #measure = singleFlight((sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>) =>
    this.#readUse(sessions).then(
      (use) => {
        this.#growth = this.#use ? growthBetween(this.#use, use) : [];
        this.#use = use;
        this.#unmeasured.clearAll();
      },
      (error) => this.#unmeasured.report('guard.failed', 'disk use', error, { what: 'disk use' }),
    ),
  );

  /** Free bytes of the fullest volume below the limit; null when every volume has enough. */
  async #lowestFree(): Promise<number | null> {
    const volumes = await readVolumes(this.#settings);
    const isLow = ({ freeBytes }: { freeBytes: number }) => freeBytes < this.#settings.MIN_FREE_DISK_MB * MB;
    for (const volume of volumes) {
      const name = volume.names.join(', ');
      const reason = `less than ${this.#settings.MIN_FREE_DISK_MB} MB are free`;
      if (isLow(volume)) {
        this.#low.report('guard.disk_low', name, reason, {
          volume: name,
          free_mb: Math.round(volume.freeBytes / MB),
        });
      } else if (this.#low.clear(name)) this.#log('guard.disk_sufficient', { volume: name });
    }
    const low = volumes.filter(isLow).map(({ freeBytes }) => freeBytes);
    return low.length === 0 ? null : Math.min(...low);
  }

  /** Attempts that a server cannot log are not counted. */
  async #reportLogs(): Promise<void> {
    for (const { name, freeBytes } of await readLogVolumes(this.#settings)) {
      const what = `log of ${name}`;
      if (freeBytes < LOG_NEEDS) {
        this.#unwatched.report('attempts.unwatched', what, 'its volume is full', { what });
      } else if (this.#unwatched.clear(what)) this.#log('attempts.watched_again', { what });
    }
  }
}
