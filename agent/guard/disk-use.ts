import type { Pool } from '../postgres/connect.ts';
import { temporaryBytes } from '../postgres/file-bytes.ts';
import type { GuardedBranch, TenantSession } from './guard.ts';

/** Sizing a database reads the metadata of each of its files. Milliseconds. */
const SIZE_WITHIN = 2_000;

/** What the branches with sessions have on the disk at one instant. */
export interface DiskUse {
  /** Milliseconds of a monotonic clock. */
  at: number;
  /** By branch: bytes of its database and of its temporary files. A branch that could not be measured is missing. */
  files: Map<GuardedBranch, number>;
  /** By session: its branch, and the bytes of WAL that it has reported, which it does between transactions. */
  wal: Map<string, { branch: GuardedBranch; bytes: number }>;
}

export async function readDiskUse(
  postgres: Pool,
  dataDir: string,
  sessions: ReadonlyMap<GuardedBranch, readonly TenantSession[]>,
): Promise<DiskUse> {
  const temporary = await temporaryBytes(dataDir);
  const reported = await walByPid(postgres, [...sessions.values()].flat());
  const use: DiskUse = { at: performance.now(), files: new Map(), wal: new Map() };
  for (const [branch, own] of sessions) {
    const size = await databaseBytes(postgres, branch.database);
    const temp = own.reduce((sum, { pid }) => sum + (temporary.get(pid) ?? 0), 0);
    if (size !== null) use.files.set(branch, size + temp);
    for (const { pid, key } of own) {
      const bytes = reported.get(pid);
      if (bytes !== undefined) use.wal.set(key, { branch, bytes });
    }
  }
  return use;
}

/** Null for a database that is gone, or that a tenant has given too many files. */
async function databaseBytes(postgres: Pool, database: string): Promise<number | null> {
  const session = await postgres.connect();
  let isIntact = false;
  try {
    await session.query(`BEGIN; SET LOCAL statement_timeout = ${SIZE_WITHIN}`);
    const { rows } = await session.query<{ bytes: number }>('SELECT pg_database_size($1)::float8 AS bytes', [
      database,
    ]);
    await session.query('COMMIT');
    isIntact = true;
    return rows[0]?.bytes ?? null;
  } catch {
    return null;
  } finally {
    session.release(!isIntact);
  }
}

async function walByPid(postgres: Pool, sessions: readonly TenantSession[]): Promise<Map<number, number>> {
  const { rows } = await postgres.query<{ pid: number; bytes: number }>(
    `SELECT pid, wal_bytes::float8 AS bytes
     FROM unnest($1::int[]) AS pid CROSS JOIN pg_stat_get_backend_wal(pid) WHERE wal_bytes IS NOT NULL`,
    [sessions.map(({ pid }) => pid)],
  );
  return new Map(rows.map(({ pid, bytes }) => [pid, bytes]));
}
