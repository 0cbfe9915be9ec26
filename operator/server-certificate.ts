import { once } from 'node:events';
import { connect as connectSocket, isIP } from 'node:net';
import { connect as connectTls } from 'node:tls';

const TIMEOUT_MS = 10_000;

/**
 * PostgreSQL's request for TLS: the length of the message, and 1234 << 16 | 5679. PgBouncer takes it as well.
 */
const SSL_REQUEST = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]);
const ACCEPTED = 'S';

export interface ServerCertificate {
  endsAt: Date;
  /** Why a client does not trust it; null if it does. */
  distrust: string | null;
}

/**
 * The certificate that a database server shows to clients.
 * @param authority PEM certificates to trust; null: the public authorities
 * @param name that it has to be valid for, if it is not the host
 * @throws Error when the server cannot be reached or has no TLS
 */
export async function serverCertificate(
  host: string,
  port: number,
  authority: string | null,
  name = host,
): Promise<ServerCertificate> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const socket = connectSocket({ host, port });
  try {
    await once(socket, 'connect', { signal });
    socket.write(SSL_REQUEST);
    const [reply] = (await once(socket, 'data', { signal })) as [Buffer];
    if (reply.toString('latin1') !== ACCEPTED) throw new Error('the server has no TLS');
    const secured = connectTls({
      socket,
      host: name,
      ...(isIP(name) === 0 && { servername: name }),
      ...(authority !== null && { ca: authority }),
      rejectUnauthorized: false,
    });
    await once(secured, 'secureConnect', { signal });
    const { valid_to: end } = secured.getPeerCertificate();
    const { authorized, authorizationError } = secured;
    const distrust = authorized ? null : String(authorizationError);
    secured.destroy();
    return { endsAt: new Date(end), distrust };
  } finally {
    socket.destroy();
  }
}
