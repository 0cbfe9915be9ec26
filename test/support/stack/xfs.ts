import { execFileSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, rmSync, statfsSync, truncateSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface XfsMount {
  folder: string;
  /** Bytes in use on the disk after a sync. */
  usedBytes: () => number;
  /** Unmounts it and removes its file; the second time it does nothing. */
  remove: () => void;
}

const run = (command: string, ...args: string[]) =>
  execFileSync(command, args, { stdio: 'pipe', encoding: 'utf8' });

/** The reason why this machine cannot make a file system with copy-on-write; null when it can. */
export function xfsHindrance(): string | null {
  if (process.platform !== 'linux') return 'XFS needs Linux';
  if (process.getuid?.() !== 0) return 'only root can mount a file system';
  return null;
}

/**
 * Mounts an XFS with reflink that lies in a sparse file, and removes it at the latest when this process ends.
 * @param bytes size of the file system; the file takes only what is written
 * @param metadata more options of its metadata, for instance `rmapbt=0`
 * @throws Error when mkfs.xfs or mount fails
 */
export function mountXfs(bytes: number, ...metadata: string[]): XfsMount {
  installMkfs();
  return mountImage(bytes, ['mkfs.xfs', '-q', '-m', ['reflink=1', ...metadata].join(',')]);
}

/** As `mountXfs`, an ext4 with so many inodes. */
export const mountExt4 = (bytes: number, inodes: number): XfsMount =>
  mountImage(bytes, ['mkfs.ext4', '-q', '-N', String(inodes)]);

function mountImage(bytes: number, [mkfs, ...options]: [string, ...string[]]): XfsMount {
  const home = mkdtempSync(join(tmpdir(), 'branchgate-xfs-'));
  // PostgreSQL runs as a user of its own and has to get through.
  chmodSync(home, 0o755);
  const image = join(home, 'image');
  const folder = join(home, 'mount');
  let mounted = false;
  const remove = () => {
    process.off('exit', remove);
    // Lazily, because a leftover process would block it: the mount is removed now, the disk with its last
    // open file.
    if (mounted) run('umount', '--lazy', folder);
    mounted = false;
    rmSync(home, { recursive: true, force: true });
  };
  process.on('exit', remove);
  try {
    writeFileSync(image, '');
    truncateSync(image, bytes);
    mkdirSync(folder);
    run(mkfs, ...options, image);
    mountDirectly(image, folder);
    mounted = true;
  } catch (error) {
    remove();
    throw error;
  }
  return {
    folder,
    usedBytes: () => {
      run('sync', '--file-system', folder);
      const { blocks, bfree, bsize } = statfsSync(folder);
      return (blocks - bfree) * bsize;
    },
    remove,
  };
}

/**
 * Mounts it without the cache of the file system that contains the image, where possible. With the cache,
 * earlier writes would reach the disk during a measurement.
 */
function mountDirectly(image: string, folder: string): void {
  const device = run('losetup', '--find', '--show', image).trim();
  try {
    run('losetup', '--direct-io=on', device);
  } catch {
    // Not every file system below the image supports direct I/O.
  }
  try {
    run('mount', device, folder);
  } finally {
    // While it is mounted, this removes the device together with the mount.
    run('losetup', '--detach', device);
  }
}

/** Debian and Ubuntu have it in a separate package. */
function installMkfs(): void {
  try {
    run('mkfs.xfs', '-V');
  } catch {
    // Another process may be installing it.
    run('apt-get', 'install', '--yes', '--quiet', '-o', 'DPkg::Lock::Timeout=120', 'xfsprogs');
  }
}
