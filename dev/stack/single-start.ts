import { createServer, type Server } from 'node:net';
import { shortHash } from './host-folder.ts';
import { Refusal } from './refusal.ts';

/**
 * Locks DEV_DIR for this process with an abstract unix socket (unix(7)). The kernel gives the name to one process and
 * releases it however that process ends, so there is no lock file that could be stale.
 * @returns a function that releases the lock
 * @throws Refusal when another process holds the lock
 */
export function lockDevFolder(devDir: string): Promise<() => Promise<void>> {
  const { promise, resolve, reject } = Promise.withResolvers<() => Promise<void>>();
  const server: Server = createServer();
  server.once('error', () =>
    reject(new Refusal(`a stack is already running in ${devDir}: stop it, or set DEV_DIR to another folder`)),
  );
  server.listen(`\0branchgate-dev-${shortHash(devDir)}`, () => {
    server.unref();
    resolve(() => new Promise((done) => server.close(() => done())));
  });
  return promise;
}
