import { globSync } from 'node:fs';
import { join } from 'node:path';
import { rulesFolder } from '../../../agent/process/settings.ts';
import { devFolder } from '../../../dev/stack/dev-folder.ts';
import type { Sources } from '../snapshot.ts';
import type { Stack, StackHost } from './stack.ts';

/** The files and sockets of a running stack from which a picture of one of its hosts is taken. */
export function sourcesOf(stack: Stack, host: StackHost | undefined = stack.hosts[0]): Sources {
  const [d1File] = globSync(join(devFolder(stack.devDir).gatewayState, 'd1/**/*.sqlite'));
  if (!d1File || !host) throw new Error('the gateway has no D1');
  const { sockets: socketDir, ports, dataDir, stateDir } = host;
  return {
    d1File,
    dataDir,
    postgres: { socketDir, port: ports.direct },
    pooler: { socketDir, port: ports.pooled },
    rulesDir: rulesFolder({ STATE_DIR: stateDir }),
  };
}
