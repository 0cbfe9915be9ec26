import { execFileSync } from 'node:child_process';
import { readdirSync, rmSync, statfsSync } from 'node:fs';
import { join } from 'node:path';
import { mountXfs, type XfsMount, xfsHindrance } from '../support/stack/xfs.ts';

/** Enough for a cluster and a few dozen small branches; XFS requires at least 300 MB. */
const DISK_BYTES = 1024 ** 3;

const run = (command: string, ...args: string[]) => execFileSync(command, args, { stdio: 'ignore' });

/** A small disk that can be filled to the last block. */
export class Disk {
  readonly #mount: XfsMount;

  private constructor(mount: XfsMount) {
    this.#mount = mount;
  }

  /** @returns null where none can be mounted; schedules then run without full disks */
  static mount(): Disk | null {
    if (xfsHindrance()) return null;
    try {
      return new Disk(mountXfs(DISK_BYTES));
    } catch {
      return null;
    }
  }

  /** A folder that does not exist yet, for PostgreSQL's data. */
  get folder(): string {
    return join(this.#mount.folder, 'data');
  }

  fill(): void {
    const { bavail, bsize } = statfsSync(this.#mount.folder);
    // All free blocks may be too many for one file, because its extents take space as well.
    for (let bytes = bavail * bsize; bytes >= bsize; bytes = Math.floor(bytes / 2)) {
      try {
        run('fallocate', '--length', String(bytes), join(this.#mount.folder, `ballast-${bytes}`));
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
