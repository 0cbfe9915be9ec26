import { execFileSync } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { chmodSync, readdirSync, rmSync, statfsSync } from 'node:fs';
import { join } from 'node:path';
import { mountXfs, type XfsMount, xfsHindrance } from './xfs.ts';

/** Enough for a cluster and a few dozen small branches; XFS requires at least 300 MB. */
const DISK_BYTES = 1024 ** 3;

const run = (command: string, ...args: string[]) => execFileSync(command, args, { stdio: 'ignore' });

/** A small disk that can be filled. */
export class SmallDisk {
  readonly #mount: XfsMount;

  private constructor(mount: XfsMount) {
    this.#mount = mount;
  }

  /** @returns null where none can be mounted; schedules then run without full disks */
  static mount(): SmallDisk | null {
    if (xfsHindrance()) return null;
    try {
      const mount = mountXfs(DISK_BYTES);
      // Tests that run as the servers' user fill it too.
      chmodSync(mount.folder, 0o777);
      return new SmallDisk(mount);
    } catch {
      return null;
    }
  }

  /** A folder that does not exist yet, for PostgreSQL's data. */
  get folder(): string {
    return join(this.#mount.folder, 'data');
  }

  /** After a sync. */
  get usedBytes(): number {
    return this.#mount.usedBytes();
  }

  get freeBytes(): number {
    const { bavail, bsize } = statfsSync(this.#mount.folder);
    return bavail * bsize;
  }

  /** @param spared bytes that stay free */
  fill(spared = 0): void {
    const { bsize } = statfsSync(this.#mount.folder);
    const room = () => this.freeBytes - spared;
    // All free blocks may be too many for one file, because its extents take space as well.
    for (let bytes = room(); bytes >= bsize; bytes = Math.min(room(), Math.floor(bytes / 2))) {
      try {
        run('fallocate', '--length', String(bytes), join(this.#mount.folder, `ballast-${randomUUID()}`));
      } catch {
        // The next one is half as large.
      }
    }
  }

  empty(): void {
    for (const name of readdirSync(this.#mount.folder))
      if (name.startsWith('ballast-')) rmSync(join(this.#mount.folder, name));
  }

  remove(): void {
    rmSync(this.folder, { recursive: true, force: true });
    this.#mount.remove();
  }
}
