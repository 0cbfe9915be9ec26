import pg from 'pg';
import { hostFolder } from '../../../dev/stack/host-folder.ts';
import { serverUser } from '../../../dev/stack/os-user.ts';
import type { StackState } from '../../../dev/stack/stack.ts';

/** Where a server of the local stack listens. */
export interface HostSocket {
  socketDir: string;
  port: number;
}

/** Sockets of a running stack's two servers. */
export function socketsOf({ host_dir, direct_port, pooled_port }: StackState) {
  const socketDir = hostFolder(host_dir, {}).sockets;
  return { postgres: { socketDir, port: direct_port }, pooler: { socketDir, port: pooled_port } };
}

/**
 * A session over a unix socket as the operating system user of the servers, whom both let in without a
 * password: PostgreSQL as `branchgate`, the pooler's console as `pgbouncer`.
 */
export async function connectOnHost(
  { socketDir, port }: HostSocket,
  user: 'branchgate' | 'pgbouncer',
  database: string = user,
): Promise<pg.Client> {
  const client = new pg.Client({ host: socketDir, port, user, database });
  client.on('error', () => {});
  await asServerUser(() => client.connect());
  return client;
}

/** The kernel records the user at the system call `connect`, which pg makes before it returns. */
function asServerUser<T>(connect: () => T): T {
  if (process.getuid?.() !== 0) return connect();
  process.seteuid?.(serverUser().uid);
  try {
    return connect();
  } finally {
    process.seteuid?.(0);
  }
}
