import { Socket } from 'node:net';
import { type OwnSession, openSession } from '../postgres/connect.ts';
import { HostError } from '../servers/host-error.ts';

/** Far more than any result has. */
const BYTES_MAX = 16 * 1024 * 1024;
/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

/** A session with a tenant's database, which bounds what the agent reads of it. */
export interface BoundedSession {
  session: OwnSession;
  /** `performance.now()` */
  openedAt: number;
  /** Starts the next operation, which may read as much as the first. */
  renew: () => void;
}

/** A tenant's code can send endless errors and notices, all of which would be read into the agent's memory. */
export async function openBoundedSession(config: Parameters<typeof openSession>[0]): Promise<BoundedSession> {
  const socket = new Socket();
  let allowed = BYTES_MAX;
  socket.on('data', () => {
    if (socket.bytesRead <= allowed) return;
    socket.destroy(new HostError('STATEMENT_REFUSED', 'the database sent too much', PROGRAM_LIMIT));
  });
  const session = await openSession({ ...config, stream: () => socket });
  const renew = () => {
    allowed = socket.bytesRead + BYTES_MAX;
  };
  return { session, openedAt: performance.now(), renew };
}
