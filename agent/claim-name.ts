import { createServer } from 'node:net';

/**
 * Takes a name for this process, as an abstract unix socket (unix(7)). The kernel gives it to one process and releases it
 * however that process ends, so there is no lock file that could be stale.
 * @returns a function that releases the name, or null when another process has it
 */
export function claimName(name: string): Promise<(() => Promise<void>) | null> {
  const { promise, resolve, reject } = Promise.withResolvers<(() => Promise<void>) | null>();
  const server = createServer();
  server.once('error', (error: NodeJS.ErrnoException) =>
    error.code === 'EADDRINUSE' ? resolve(null) : reject(error),
  );
  server.listen(`\0${name}`, () => {
    server.unref();
    resolve(() => new Promise((done) => server.close(() => done())));
  });
  return promise;
}
