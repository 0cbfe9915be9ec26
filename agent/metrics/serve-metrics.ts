import { createServer } from 'node:http';
import type { Registry } from 'prom-client';
import type { Log } from '../trouble-log.ts';

const LOOPBACK = '127.0.0.1';

interface Serving {
  registry: Registry;
  port: number;
  log: Log;
  signal: AbortSignal;
}

/**
 * Serves the metrics at `/metrics` on loopback until `signal` aborts. A port that is taken is logged, because an agent
 * without metrics is better than none.
 */
export async function serveMetrics({ registry, port, log, signal }: Serving): Promise<void> {
  let collecting: Promise<string> | null = null;
  // Reads the servers once, however many clients ask at the same time.
  const collect = () => {
    collecting ??= registry.metrics().finally(() => {
      collecting = null;
    });
    return collecting;
  };
  const server = createServer((request, response) => {
    const isMetrics = request.method === 'GET' && request.url === '/metrics';
    if (!isMetrics) {
      response.writeHead(404).end();
      return;
    }
    collect().then(
      (text) => response.writeHead(200, { 'Content-Type': registry.contentType }).end(text),
      (error) => {
        log('metrics.failed', { reason: String(error) });
        response.writeHead(500).end();
      },
    );
  });
  const { promise: ended, resolve: end } = Promise.withResolvers<void>();
  server.on('error', (error) => {
    log('metrics.unserved', { port, reason: error.message });
    end();
  });
  server.on('close', () => end());
  signal.addEventListener(
    'abort',
    () => {
      server.close();
      server.closeAllConnections();
    },
    { once: true },
  );
  server.listen(port, LOOPBACK, () => log('metrics.served', { port }));
  await ended;
}
