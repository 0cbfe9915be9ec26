import { join } from 'node:path';
import { afterAll, describe } from 'vitest';
import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { mountExt4, mountXfs, type XfsMount, xfsHindrance } from '../support/stack/xfs.ts';

const VOLUME_BYTES = 2 * 2 ** 30;
const MIN_FREE_DISK_MB = '900';

/**
 * A cluster, the victims and the attacker have some 2,500 files before the attack, which makes up to 3,500 a
 * second.
 */
const INODES = 60_000;

const hindrance = xfsHindrance();

describe.skipIf(hindrance !== null)(`on a small volume${hindrance ? ` (${hindrance})` : ''}`, () => {
  let disk: XfsMount | undefined;
  // Registered before the stack's own, so that it runs after it.
  afterAll(() => disk?.remove());
  describeAttacks(['full volume'], () => {
    disk = mountXfs(VOLUME_BYTES);
    return { env: { PGDATA_DIR: join(disk.folder, 'data'), MIN_FREE_DISK_MB } };
  });
});

describe.skipIf(hindrance !== null)(
  `on a volume with few inodes${hindrance ? ` (${hindrance})` : ''}`,
  () => {
    let disk: XfsMount | undefined;
    afterAll(() => disk?.remove());
    describeAttacks(['few inodes'], () => {
      disk = mountExt4(VOLUME_BYTES, INODES);
      return { env: { PGDATA_DIR: join(disk.folder, 'data'), MIN_FREE_DISK_MB: '16' } };
    });
  },
);
