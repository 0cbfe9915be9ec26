import { join } from 'node:path';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';
import { mountXfs, type XfsMount } from '../support/stack/xfs.ts';

/**
 * Runs `use` on a whole stack with PostgreSQL's data on XFS with reflink in a loopback file.
 * @param signal aborts the run
 * @param diskBytes size of the XFS; the file is sparse
 * @param env settings of the stack by name
 * @throws the first error after `signal` is aborted
 */
export async function onXfsStack<Result>(
  signal: AbortSignal,
  diskBytes: number,
  use: (stack: Stack, disk: XfsMount) => Promise<Result>,
  env: Record<string, string> = {},
): Promise<Result> {
  const disk = mountXfs(diskBytes);
  try {
    const stack = await startStack({
      env: { ...env, PGDATA_DIR: join(disk.folder, 'data') },
      restarts: false,
    });
    try {
      signal.throwIfAborted();
      // The measurement in progress then fails immediately.
      signal.addEventListener('abort', () => Promise.all([stack.kill('gateway'), stack.kill('postgres')]));
      return await use(stack, disk);
    } finally {
      await stack.stop();
    }
  } finally {
    disk.remove();
  }
}

/** @returns the versions that results about databases depend on */
export async function serverVersions(stack: Stack): Promise<Record<'PostgreSQL' | 'PgBouncer', string>> {
  const postgres = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
  const console = await connectOnHost(socketsOf(stack.state).pooler, 'pgbouncer');
  try {
    const server = await postgres.query<{ server_version: string }>('show server_version');
    const pooler = await console.query<{ version: string }>('SHOW VERSION');
    return { PostgreSQL: server.rows[0]?.server_version ?? '', PgBouncer: pooler.rows[0]?.version ?? '' };
  } finally {
    await Promise.all([postgres.end(), console.end()]);
  }
}
