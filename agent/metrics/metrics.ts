import { createServer } from 'node:http';
import { Histogram, Registry } from 'prom-client';
import type { Method } from '../../shared/protocol/operations.ts';
import { singleFlight } from '../../shared/single-flight.ts';
import { HOST_LOCK_SECONDS } from '../postgres/locks.ts';
import { asHostError } from '../postgres/postgres-failure.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';

const OPERATION_SECONDS = [0.005, 0.02, 0.1, 0.5, 1, 5, 15, 60, 300, 900];
const CLONE_SECONDS = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15, 60, 300];
const PAUSE_SECONDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 15];

/** What happened on this host since the agent started; in memory, for the metrics (`docs/monitoring`). */
export class Metrics {
  readonly registry = new Registry();
  readonly #operations = new Histogram({
    name: 'branchgate_operation_duration_seconds',
    help: 'Operations that the gateway called, by name and outcome',
    labelNames: ['operation', 'outcome'],
    buckets: OPERATION_SECONDS,
    registers: [this.registry],
  });
  readonly #clones = new Histogram({
    name: 'branchgate_clone_duration_seconds',
    help: 'CREATE DATABASE of a clone or a snapshot, by the method of the copy',
    labelNames: ['method'],
    buckets: CLONE_SECONDS,
    registers: [this.registry],
  });
  readonly #pauses = new Histogram({
    name: 'branchgate_pause_duration_seconds',
    help: 'Time for which the pooled clients of a source were held',
    buckets: PAUSE_SECONDS,
    registers: [this.registry],
  });

  constructor() {
    this.registry.registerMetric(HOST_LOCK_SECONDS);
  }

  /** Counts the operation when it ends. @returns the operation */
  countOperation<T>(operation: Method, run: Promise<T>): Promise<T> {
    const end = this.#operations.startTimer({ operation });
    run.then(
      () => end({ outcome: 'ok' }),
      (error) => end({ outcome: outcomeOf(error) }),
    );
    return run;
  }

  countClone(method: string, milliseconds: number): void {
    this.#clones.observe({ method }, milliseconds / 1000);
  }

  countPause(milliseconds: number): void {
    this.#pauses.observe(milliseconds / 1000);
  }
}

function outcomeOf(error: unknown): string {
  const failure = asHostError(error);
  return failure instanceof HostError ? failure.code : 'INTERNAL';
}

const LOOPBACK = '127.0.0.1';

interface Serving {
  registry: Registry;
  port: number;
  log: Log;
  signal: AbortSignal;
}

/**
 * Serves the metrics at `/metrics` on loopback until `signal` aborts. A port that is taken is logged, because
 * an agent without metrics is better than none.
 */
export async function serveMetrics({ registry, port, log, signal }: Serving): Promise<void> {
  // Reads the servers once, however many clients ask at the same time.
  const collect = singleFlight(() => registry.metrics());
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
