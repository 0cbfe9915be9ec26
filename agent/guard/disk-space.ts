import type { AgentSettings } from '../settings.ts';
import { type Log, TroubleLog } from '../trouble-log.ts';
import { type Growth, growthBetween } from './disk-growth.ts';
import type { DiskUse } from './disk-use.ts';
import {
  byBranch,
  type Finding,
  type Guard,
  type GuardedBranch,
  type Observation,
  type TenantSession,
} from './guard.ts';
import { readLogVolumes, readVolumes } from './volumes.ts';

const MB = 2 ** 20;
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
  #reading: Promise<void> | null = null;

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
    this.#measure(byBranch(server.sessions));
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
  #measure(sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>): void {
    this.#reading ??= this.#readUse(sessions)
      .then(
        (use) => {
          this.#growth = this.#use ? growthBetween(this.#use, use) : [];
          this.#use = use;
          this.#unmeasured.clearAll();
        },
        (error) => this.#unmeasured.report('guard.failed', 'disk use', error, { what: 'disk use' }),
      )
      .finally(() => {
        this.#reading = null;
      });
  }

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
