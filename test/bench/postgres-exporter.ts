import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { PLATFORM_ROLE } from '../../agent/postgres/connect.ts';
import type { AgentSettings } from '../../agent/process/settings.ts';
import { eventually } from '../support/eventually.ts';

/** Path in the Debian package. */
const PROGRAM = '/usr/bin/prometheus-postgres-exporter';

/** @returns why it cannot be measured on this machine, or null */
export const exporterHindrance = (): string | null =>
  existsSync(PROGRAM) ? null : 'not installed: `apt-get install prometheus-postgres-exporter`';

/** The version from `--version`, which may use either stream. */
export function exporterVersion(): string {
  const { stdout, stderr } = spawnSync(PROGRAM, ['--version'], { encoding: 'utf8' });
  return /revision: ([^)\s]+)/.exec(stdout + stderr)?.[1] ?? 'unknown';
}

/**
 * `prometheus-postgres-exporter` with the package's default collectors and one session over the unix socket, as a
 * superuser (offered by its README.Debian). The collectors read the size and the statistics of every database.
 */
export class Exporter {
  readonly #port: number;
  #child: ChildProcess | null = null;

  constructor(port: number) {
    this.#port = port;
  }

  /** Resolves when it serves. */
  async start({ POSTGRES_SOCKET_DIR, POSTGRES_PORT }: AgentSettings): Promise<void> {
    const source = {
      user: PLATFORM_ROLE,
      dbname: PLATFORM_ROLE,
      host: POSTGRES_SOCKET_DIR,
      port: POSTGRES_PORT,
      sslmode: 'disable',
    };
    this.#child = spawn(PROGRAM, [`--web.listen-address=127.0.0.1:${this.#port}`], {
      env: {
        DATA_SOURCE_NAME: Object.entries(source)
          .map(([name, value]) => `${name}=${value}`)
          .join(' '),
      },
      stdio: 'ignore',
    });
    await eventually(() => this.scrape());
  }

  /** @returns the metrics in Prometheus' text format */
  async scrape(): Promise<string> {
    const response = await fetch(`http://127.0.0.1:${this.#port}/metrics`);
    if (!response.ok) throw new Error(`the exporter responded ${response.status}`);
    return response.text();
  }

  async stop(): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, 'exit');
    child.kill();
    await ended;
  }
}
