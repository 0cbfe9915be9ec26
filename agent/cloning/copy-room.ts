import { freeBytes } from '../guard/volumes.ts';
import { HostError } from '../servers/host-error.ts';
import type { AgentSettings } from '../settings.ts';

const MB = 2 ** 20;

/**
 * Room on the disk for copies of databases. No quota counts snapshots, so a tenant could fill the disk with them, and
 * PostgreSQL stops when it cannot write its log of changes.
 */
export class CopyRoom {
  readonly #settings: Pick<AgentSettings, 'PGDATA_DIR' | 'MIN_FREE_DISK_MB'>;
  /** Of copies that are being written side by side, in whole. */
  #bytes = 0;

  constructor(settings: Pick<AgentSettings, 'PGDATA_DIR' | 'MIN_FREE_DISK_MB'>) {
    this.#settings = settings;
  }

  /** Runs what writes so many bytes. @throws HostError HOST_FULL if less than `MIN_FREE_DISK_MB` would stay free */
  async during<T>(bytes: number, copy: () => Promise<T>): Promise<T> {
    this.#bytes += bytes;
    try {
      const { PGDATA_DIR, MIN_FREE_DISK_MB } = this.#settings;
      const left = (await freeBytes(PGDATA_DIR)) - this.#bytes;
      if (left < MIN_FREE_DISK_MB * MB) {
        const left_mb = Math.round(left / MB);
        throw new HostError('HOST_FULL', `the copy would leave ${left_mb} of ${MIN_FREE_DISK_MB} MB free`);
      }
      return await copy();
    } finally {
      this.#bytes -= bytes;
    }
  }
}
