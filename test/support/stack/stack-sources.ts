import { globSync } from 'node:fs';
import { join } from 'node:path';
import { rulesFolder } from '../../../agent/process/settings.ts';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import { hostFolder } from '../../../dev/stack/host-folder.ts';
import { socketsOf } from '../host/host-session.ts';
import type { Sources } from '../snapshot.ts';
import type { Stack } from './stack.ts';

/** The files and sockets of a running stack from which a picture is taken. */
export function sourcesOf({ state, devDir }: Stack): Sources {
  const [d1File] = globSync(join(devFolder(devDir).gatewayState, 'd1/**/*.sqlite'));
  if (!d1File) throw new Error('the gateway has no D1');
  return {
    d1File,
    ...socketsOf(state),
    dataDir: state.data_dir,
    rulesDir: rulesFolder({ STATE_DIR: hostFolder(state.host_dir, {}).state }),
  };
}
