import { execFileSync } from 'node:child_process';
import { cpSync } from 'node:fs';
import { join } from 'node:path';
import { oncePerRun } from '../support/run-folder.ts';

/** Cases that do not work through the pooler, as docs/clients.md says. */
export const KNOWN: Record<string, string> = {
  'pg pooled named': 'prepared statement "named-t_pg_pooled" does not exist',
  'pg pooled listen': 'nothing within 5000 ms',
  'postgres pooled listen': 'nothing within 5000 ms',
  'neon pooled listen': 'nothing within 5000 ms',
};

/** Clients with the programs that try them. @returns their folder */
export const clientPackages = (): Promise<string> =>
  oncePerRun('client-packages', async (folder) => {
    cpSync(join(import.meta.dirname, 'packages'), folder, {
      recursive: true,
      filter: (path) => !path.endsWith('node_modules'),
    });
    execFileSync('npm', ['ci', '--ignore-scripts'], { cwd: folder, stdio: 'ignore' });
  });

/** The steps of clients that failed, with the reason. */
export const failuresOf = (results: readonly Record<string, string>[]): Record<string, string> =>
  Object.fromEntries(
    results.flatMap(({ client, port, ...steps }) =>
      Object.entries(steps)
        .filter(([, result]) => result !== 'ok')
        .map(([step, result]) => [`${client} ${port} ${step}`, result]),
    ),
  );
