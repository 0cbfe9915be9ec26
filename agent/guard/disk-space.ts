import { singleFlight } from '../../shared/single-flight.ts';
import type { Pool } from '../postgres/connect.ts';
import { temporaryBytes } from '../postgres/file-bytes.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import type { AgentSettings } from '../process/settings.ts';
import { isShortOfInodes, readLogVolumes, readVolumes, type Volume } from '../volumes/volumes.ts';
import type { FileGrowth } from './files.ts';
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
  bytes: Map<GuardedBranch, number>;
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
  const use: DiskUse = { at: performance.now(), bytes: new Map(), wal: new Map() };
  for (const [branch, own] of sessions) {
    const bytes = await measureDatabase(postgres, branch.database);
    const temp = own.reduce((sum, { pid }) => sum + (temporary.get(pid) ?? 0), 0);
    if (bytes !== null) use.bytes.set(branch, bytes + temp);
    for (const { pid, key } of own) {
      const bytes = reported.get(pid);
      if (bytes !== undefined) use.wal.set(key, { branch, bytes });
    }
  }
  return use;
}

/** Bytes; null for a database that is gone, and for one that a tenant has given too many files. */
export async function measureDatabase(postgres: Pool, database: string): Promise<number | null> {
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
  const bytes = increase(before.bytes, now.bytes);
  const wal = walBetween(before, now);
  return [...now.bytes.keys()]
    .map((branch) => {
      const written = Math.max(0, (wal.get(branch.branch_id) ?? 0) - USUAL_WAL * seconds);
      return {
        branch,
        bytesPerSecond: (bytes(branch) + written) / seconds,
      };
    })
    .sort((one, other) => other.bytesPerSecond - one.bytesPerSecond);
}

/** By how much each branch has more than before; 0 where one of both is not known. */
function increase(
  before: ReadonlyMap<GuardedBranch, number>,
  now: ReadonlyMap<GuardedBranch, number>,
): (branch: GuardedBranch) => number {
  const known = new Map([...before].map(([{ branch_id }, count]) => [branch_id, count]));
  return (branch) => {
    const count = now.get(branch) ?? 0;
    return Math.max(0, count - (known.get(branch.branch_id) ?? count));
  };
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
/** As `SLOW`, in files a second. */
const FEW_FILES = 10;
/** A server writes no log with less. */
const LOG_NEEDS = MB;

type ReadDiskUse = (sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>) => Promise<DiskUse>;

/** Growth is measured below this multiple of a limit, so that it is known as soon as the limit is reached. */
const NEAR = 2;

/** What a volume that is nearly full has left; null: enough. */
interface Left {
  bytes: number | null;
  /** Known early: a burst is faster than the look that finds it, and at the limit clones are refused. */
  files: number | null;
  /** Whether a volume has little more than a limit. */
  isNear: boolean;
}

/**
 * Free space and free inodes. When one tenant takes all of a volume, nobody can write, and attempts are not logged
 * any more.
 */
export class DiskSpace implements Guard {
  readonly name = 'disk';
  readonly reason = 'disk';
  readonly #settings: AgentSettings;
  readonly #log: Log;
  readonly #readUse: ReadDiskUse;
  readonly #takeFileGrowth: () => FileGrowth[];
  readonly #low: TroubleLog;
  readonly #unwatched: TroubleLog;
  readonly #unmeasured: TroubleLog;
  #checkAt = 0;
  /** Null while there is enough space. */
  #use: DiskUse | null = null;
  #growth: Growth[] = [];

  constructor(settings: AgentSettings, log: Log, readUse: ReadDiskUse, takeFileGrowth: () => FileGrowth[]) {
    this.#settings = settings;
    this.#log = log;
    this.#readUse = readUse;
    this.#takeFileGrowth = takeFileGrowth;
    this.#low = new TroubleLog(log);
    this.#unwatched = new TroubleLog(log);
    this.#unmeasured = new TroubleLog(log);
  }

  async check(server: Observation): Promise<Finding[]> {
    if (server.at < this.#checkAt) return [];
    this.#checkAt = server.at + CHECK_EVERY_MS;
    await this.#reportLogs();
    const left = await this.#lowestLeft();
    if (!left.isNear) {
      this.#use = null;
      return [];
    }
    const growth = this.#takeGrowth();
    void this.#measure(byBranch(server.sessions));
    const made = left.files === null ? [] : this.#takeFileGrowth();
    return [
      ...growth
        .filter(({ bytesPerSecond }) => fillsSoon(bytesPerSecond, SLOW, left.bytes))
        .map((one) => ({
          ...blocking(one),
          detail: { free_mb: inMb(left.bytes), mb_per_second: inMb(one.bytesPerSecond) },
        })),
      ...made
        .filter(({ filesPerSecond }) => fillsSoon(filesPerSecond, FEW_FILES, left.files))
        .map((one) => ({
          ...blocking(one),
          detail: { free_inodes: left.files, files_per_second: Math.round(one.filesPerSecond) },
        })),
    ];
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

  /** What the fullest volumes below a limit have left. */
  async #lowestLeft(): Promise<Left> {
    const volumes = await readVolumes(this.#settings);
    const isLow = ({ freeBytes }: Volume, times = 1) =>
      freeBytes < times * this.#settings.MIN_FREE_DISK_MB * MB;
    for (const volume of volumes) {
      const name = volume.names.join(', ');
      const reason = isLow(volume)
        ? `less than ${this.#settings.MIN_FREE_DISK_MB} MB are free`
        : 'few inodes are free';
      if (isLow(volume) || isShortOfInodes(volume)) {
        this.#low.report('guard.disk_low', name, reason, {
          volume: name,
          free_mb: Math.round(volume.freeBytes / MB),
          ...(volume.inodes && { free_inodes: volume.inodes.free }),
        });
      } else if (this.#low.clear(name)) this.#log('guard.disk_sufficient', { volume: name });
    }
    return {
      bytes: lowest(volumes.filter((volume) => isLow(volume)).map(({ freeBytes }) => freeBytes)),
      files: lowest(
        volumes.filter((volume) => isShortOfInodes(volume, NEAR)).map(({ inodes }) => inodes?.free ?? 0),
      ),
      isNear: volumes.some((volume) => isLow(volume, NEAR) || isShortOfInodes(volume, NEAR)),
    };
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

const lowest = (values: readonly number[]) => (values.length === 0 ? null : Math.min(...values));

/** Whether a branch alone would take within a minute what a volume has left. @param left null: enough */
const fillsSoon = (perSecond: number, usual: number, left: number | null): boolean =>
  left !== null && perSecond > Math.max(usual, left / FILLS_WITHIN_SECONDS);

const inMb = (bytes: number | null) => Math.round((bytes ?? 0) / MB);

const blocking = ({ branch }: { branch: GuardedBranch }) => ({ sessions: [], branches: [branch] });
