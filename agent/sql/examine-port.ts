import { X509Certificate } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { connect } from 'node:tls';
import type { Queryable } from '../postgres/connect.ts';
import { localHost } from './server-login.ts';

const WITHIN_MS = 3_000;

/** `other`: a program that is not the agent. `none`: nothing, although the agent runs. */
export type PortState = 'served' | 'other' | 'none' | 'unknown';

/**
 * Finds which program answers at the port of SQL over WebSocket.
 * @param listens PostgreSQL's `listen_addresses`
 * @param certFile that the agent presents
 */
export async function examinePort(
  db: Queryable,
  { port, listens, certFile }: { port: number; listens: string; certFile: string },
): Promise<PortState> {
  const host = localHost(listens);
  const own = await readFile(certFile, 'utf8').then(fingerprintOf, () => null);
  if (port === 0 || host === null || own === null) return 'unknown';
  // Only the certificate is compared, and nothing is sent.
  const socket = connect({ host, port, rejectUnauthorized: false, timeout: WITHIN_MS });
  socket.on('timeout', () => socket.destroy(new Error('timeout')));
  try {
    await once(socket, 'secureConnect');
    return socket.getPeerX509Certificate()?.fingerprint256 === own ? 'served' : 'other';
  } catch (error) {
    const isRefused = (error as NodeJS.ErrnoException).code === 'ECONNREFUSED';
    if (!isRefused) return 'other';
    return (await isAgentRunning(db)) ? 'none' : 'unknown';
  } finally {
    socket.destroy();
  }
}

const fingerprintOf = (pem: string): string => new X509Certificate(pem).fingerprint256;

/** The agent keeps a session open; those of this command are younger. */
async function isAgentRunning(db: Queryable): Promise<boolean> {
  const { rowCount } = await db.query(
    `SELECT FROM pg_stat_activity WHERE application_name = 'branchgate-agent'
       AND backend_start < clock_timestamp() - interval '30 seconds' LIMIT 1`,
  );
  return rowCount !== 0;
}
