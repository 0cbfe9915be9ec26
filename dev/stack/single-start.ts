import { createServer, type Server } from 'node:net';
import { shortHash } from './host-folder.ts';
import { Refusal } from './refusal.ts';

/**
 * Holds DEV_DIR for this process. An abstract unix socket: the kernel gives the name to one process alone and
 * takes it back however that process ends, so there is no lock file that could be stale.
 * @returns what gives it up
 * @throws Refusal when another process holds it
 */
export function lockDevFolder(devDir: string): Promise<() => Promise<void>> {
  const { promise, resolve, reject } = Promise.withResolvers<() => Promise<void>>();
  const server: Server = createServer();
  server.once('error', () => reject(new Refusal(`a stack is already running in ${devDir}`)));
  server.listen(`\0branchgate-dev-${shortHash(devDir)}`, () => {
    server.unref();
    resolve(() => new Promise((done) => server.close(() => done())));
  });
  return promise;
}
