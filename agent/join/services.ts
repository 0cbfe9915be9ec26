import { statSync } from 'node:fs';
import { PLATFORM_ROLE } from '../postgres/connect.ts';
import { pollUntil } from '../process/loops.ts';
import type { Context } from './context.ts';
import { type Machine, StepFailure } from './machine.ts';

const SESSION_WITHIN_MS = 60_000;

async function show(machine: Machine, unit: string): Promise<Record<string, string>> {
  const names = 'ActiveState,ActiveEnterTimestampMonotonic,NeedDaemonReload,UnitFileState';
  const { code, stdout } = await machine.query('systemctl', ['show', unit, `--property=${names}`]);
  if (code !== 0)
    throw new StepFailure('refused', 'systemd does not run here, and it manages both servers and the agent');
  return Object.fromEntries(stdout.split('\n').map((line) => line.split(/=(.*)/s).slice(0, 2)));
}

export const isActive = async (machine: Machine, unit: string): Promise<boolean> =>
  (await show(machine, unit)).ActiveState === 'active';

/** Whether a unit started before one of the files was last written, or does not run. */
async function isOutdated(machine: Machine, unit: string, paths: readonly string[]): Promise<boolean> {
  const { ActiveState, ActiveEnterTimestampMonotonic } = await show(machine, unit);
  if (ActiveState !== 'active') return true;
  const runsForMs =
    Number(process.hrtime.bigint() / 1_000n - BigInt(ActiveEnterTimestampMonotonic ?? 0)) / 1_000;
  const written = paths.map((path) => statSync(machine.at(path), { throwIfNoEntry: false })?.mtimeMs ?? 0);
  return Math.max(...written) > Date.now() - runsForMs;
}

/** Lets systemd read unit files that were written since it did. */
export async function reloadUnits(machine: Machine, units: readonly string[]): Promise<void> {
  const states = await Promise.all(units.map((unit) => show(machine, unit)));
  if (states.some(({ NeedDaemonReload }) => NeedDaemonReload === 'yes'))
    await machine.run('reloaded the units of systemd', 'systemctl', ['daemon-reload']);
}

/** Restarts a unit, if it is older than one of these files. @returns whether it was */
export async function restartOutdated(
  machine: Machine,
  unit: string,
  paths: readonly string[],
): Promise<boolean> {
  if (!(await isOutdated(machine, unit, paths))) return false;
  await machine.run(`restarted ${unit}`, 'systemctl', ['restart', unit]);
  return true;
}

/** Enables and starts a unit, as far as it is not. */
export async function enable(machine: Machine, unit: string): Promise<void> {
  const { ActiveState, UnitFileState } = await show(machine, unit);
  if (ActiveState !== 'active' || UnitFileState !== 'enabled')
    await machine.run(`enabled and started ${unit}`, 'systemctl', ['enable', '--now', unit]);
}

/** Stops and disables a unit, as far as it is not. */
export async function disable(machine: Machine, unit: string): Promise<void> {
  const { ActiveState, UnitFileState } = await show(machine, unit);
  if (ActiveState === 'active' || UnitFileState === 'enabled')
    await machine.run(`stopped and disabled ${unit}`, 'systemctl', ['disable', '--now', unit]);
}

/**
 * Runs a statement as the platform's role, or as another one.
 * @returns its output; null if the login fails
 */
export async function psql(
  { machine, servers: { user, postgres } }: Context,
  role: string,
  statement: string,
): Promise<string | null> {
  const server = ['--host', postgres.socketDir, '--port', String(postgres.port)];
  const words = [...server, '--no-psqlrc', '--tuples-only', '--no-align', '--username', role];
  const { code, stdout } = await machine.query(
    'psql',
    [...words, '--dbname', 'postgres', '--command', statement],
    { user },
  );
  return code === 0 ? stdout.trim() : null;
}

/** Whether PostgreSQL is a standby, whose databases can only be read. */
export const isInRecovery = async (context: Context): Promise<boolean> =>
  (await psql(context, PLATFORM_ROLE, 'SELECT pg_is_in_recovery()')) === 't';

/** Whether PostgreSQL replays WAL, and accepts nobody until it has. */
async function isReplaying({ machine, servers: { postgres } }: Context): Promise<boolean> {
  const words = ['--host', postgres.socketDir, '--port', String(postgres.port)];
  return (await machine.query('pg_isready', words)).code === 1;
}

/**
 * Waits until PostgreSQL accepts the platform's role. Its unit is active also when the server could not
 * start. A standby first replays what its primary wrote during the copy, which takes as long as it takes.
 */
export async function awaitPostgres(
  context: Context,
  role: string,
  within = SESSION_WITHIN_MS,
): Promise<void> {
  const isUp = async () => (await psql(context, role, 'SELECT 1')) === '1';
  while (!(await pollUntil(isUp, { within, every: 200 })))
    if (!(await isReplaying(context)))
      throw new StepFailure(
        'unreachable',
        `PostgreSQL does not accept the role ${role} after its restart: see /var/log/postgresql and pg_lsclusters`,
      );
}
