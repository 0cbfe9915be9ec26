import type pg from 'pg';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import type { Stack } from '../support/stack/stack.ts';
import { timed } from './rounds.ts';

/** Opens a session of the platform's superuser whose clones share their source's blocks. */
export async function connectToClone({ state }: Stack): Promise<pg.Client> {
  const postgres = await connectOnHost(socketsOf(state).postgres, 'branchgate');
  await postgres.query('set file_copy_method = clone');
  return postgres;
}

/** PostgreSQL does not clone a database with open sessions, and the pooler caches some. */
export const endSessions = (postgres: pg.Client, database: string) =>
  postgres.query('select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1', [
    database,
  ]);

export const makeBareClone = (postgres: pg.Client, source: string, name: string) =>
  postgres.query(`create database "${name}" template "${source}" strategy file_copy`);

/** Makes and drops a clone. @returns its duration in milliseconds */
export async function timeBareClone(postgres: pg.Client, source: string): Promise<number> {
  await endSessions(postgres, source);
  const ms = await timed(() => makeBareClone(postgres, source, 'bare'));
  await postgres.query('drop database bare');
  return ms;
}

/** The spares of all snapshots together. */
export async function countReadySpares(session: pg.Client): Promise<number> {
  const { rows } = await session.query(
    "select from pg_database where datname ~ '^bgspare_' and not datallowconn and datacl is not null",
  );
  return rows.length;
}

/** On a busy machine. Seconds. */
const READY_WITHIN = 300;

/** @param count of all snapshots together */
export const untilSparesAreReady = (session: pg.Client, count: number): Promise<void> =>
  eventually(async () => {
    const ready = await countReadySpares(session);
    if (ready < count) throw new Error(`${ready} of ${count} spares are ready`);
  }, READY_WITHIN);
