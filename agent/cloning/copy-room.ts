import { HostError } from '../process/host-error.ts';
import type { AgentSettings } from '../process/settings.ts';
import { freeBytes, readInodes } from '../volumes/volumes.ts';

const MB = 2 ** 20;

/** A copy was refused for want of room. */
export class NoCopyRoom extends HostError {
  readonly bytes: number;

  /** @param bytes of the copy */
  constructor(bytes: number, message: string) {
    super('HOST_FULL', message);
    this.bytes = bytes;
  }
}

/**
 * Room on the disk for copies of databases. No quota counts snapshots, so a tenant could fill the disk with
 * them, and PostgreSQL stops when it cannot write its log of changes.
 */
export class CopyRoom {
  readonly #settings: Pick<AgentSettings, 'PGDATA_DIR' | 'MIN_FREE_DISK_MB'>;
  /** The sum of the copies that are being written concurrently. */
  #bytes = 0;

  constructor(settings: Pick<AgentSettings, 'PGDATA_DIR' | 'MIN_FREE_DISK_MB'>) {
    this.#settings = settings;
  }

  /** Runs what writes so many bytes. @throws NoCopyRoom if less than `MIN_FREE_DISK_MB` would stay free */
  async during<T>(bytes: number, copy: () => Promise<T>): Promise<T> {
    this.#bytes += bytes;
    try {
      const missing = await this.missing(0);
      if (missing > 0) {
        const { MIN_FREE_DISK_MB } = this.#settings;
        const left_mb = MIN_FREE_DISK_MB - Math.round(missing / MB);
        throw new NoCopyRoom(bytes, `the copy would leave ${left_mb} of ${MIN_FREE_DISK_MB} MB free`);
      }
      return await copy();
    } finally {
      this.#bytes -= bytes;
    }
  }

  /** Each clone has a file for each of the source. @throws HostError HOST_FULL if too few inodes would stay free */
  async requireInodes(files: number): Promise<void> {
    const inodes = await readInodes(this.#settings.PGDATA_DIR);
    if (inodes === null || inodes.free - files >= inodes.floor) return;
    const free = Math.round(inodes.free);
    throw new HostError(
      'HOST_FULL',
      `the clone has ${files} files, ${free} inodes are free, and ${Math.ceil(inodes.floor)} must stay free`,
    );
  }

  get isCopying(): boolean {
    return this.#bytes > 0;
  }

  /**
   * Bytes that have to become free before so many more can be written; negative if more than that are free.
   */
  async missing(bytes: number): Promise<number> {
    const { PGDATA_DIR, MIN_FREE_DISK_MB } = this.#settings;
    return MIN_FREE_DISK_MB * MB + this.#bytes + bytes - (await freeBytes(PGDATA_DIR));
  }
}
