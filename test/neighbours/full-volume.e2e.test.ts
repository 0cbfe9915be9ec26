import { join } from 'node:path';
import { afterAll, describe } from 'vitest';
import { describeAttacks } from '../support/neighbours/describe-attacks.ts';
import { mountXfs, type XfsMount, xfsHindrance } from '../support/stack/xfs.ts';

const VOLUME_BYTES = 2 * 2 ** 30;
const MIN_FREE_DISK_MB = '900';

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
