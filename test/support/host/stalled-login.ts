import { once } from 'node:events';
import { connect as connectSocket, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { HERE, type Target } from './attempts.ts';

const SSL_REQUEST = Buffer.from([0, 0, 0, 8, 4, 210, 22, 47]);
const PROTOCOL_3 = 196_608;

/**
 * A connection that has the server's SCRAM challenge (PostgreSQL's protocol, section 54.3).
 * @throws Error when refused
 */
export async function stalledLogin({ port, user, database }: Target, address = HERE): Promise<Socket> {
  const socket = connectSocket({ port, host: HERE, localAddress: address });
  await once(socket, 'connect');
  socket.write(SSL_REQUEST);
  await once(socket, 'data');
  const secure = connectTls({ socket, rejectUnauthorized: false });
  secure.on('error', () => {});
  await once(secure, 'secureConnect');
  const parameters = Buffer.from(`user\0${user}\0database\0${database}\0\0`);
  const head = Buffer.alloc(8);
  head.writeInt32BE(parameters.length + 8, 0);
  head.writeInt32BE(PROTOCOL_3, 4);
  secure.write(Buffer.concat([head, parameters]));
  const [first] = (await Promise.race([once(secure, 'data'), once(secure, 'close')])) as [Buffer?];
  if (first?.[0] !== 'R'.charCodeAt(0)) {
    secure.destroy();
    throw new Error(first?.toString('latin1').replace(/[^ -~]+/g, ' ') ?? 'closed');
  }
  return secure;
}
