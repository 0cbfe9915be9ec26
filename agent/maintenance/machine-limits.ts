import { readFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

const CGROUPS = '/sys/fs/cgroup';

/** What bounds the memory of PostgreSQL, next to its own settings. */
export interface MachineLimits {
  /** Linux's `vm.overcommit_memory`; null when it cannot be read. */
  overcommit: number | null;
  /** Limit of PostgreSQL's control group (cgroup v2) in bytes; Infinity without a limit, null when it is unknown. */
  memoryMax: number | null;
}

/** @param root of the file system, which tests replace */
export async function readMachineLimits(dataDir: string, root = '/'): Promise<MachineLimits> {
  const read = (path: string) => readFile(join(root, path), 'utf8').catch(() => null);
  const overcommit = await read('proc/sys/vm/overcommit_memory');
  const pid = Number(
    (await readFile(join(dataDir, 'postmaster.pid'), 'utf8').catch(() => '')).split('\n')[0],
  );
  const [, group] = /^0::(\/.*)$/m.exec((await read(`proc/${pid}/cgroup`)) ?? '') ?? [];
  return {
    overcommit: overcommit === null ? null : Number(overcommit),
    memoryMax: group === undefined ? null : await lowestLimit(group, read),
  };
}

/** The lowest limit among a group and those that contain it. The outermost group has no such file. */
async function lowestLimit(
  group: string,
  read: (path: string) => Promise<string | null>,
): Promise<number | null> {
  let lowest: number | null = null;
  for (let path = group; ; path = dirname(path)) {
    const text = (await read(join(CGROUPS, path, 'memory.max')))?.trim();
    if (text) lowest = Math.min(lowest ?? Infinity, text === 'max' ? Infinity : Number(text));
    if (path === '/') return lowest;
  }
}
