import { once } from 'node:events';
import { connect as connectTcp, isIP, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import type { Schemas } from '../client/client.ts';
import { refusedAddressIn } from '../shared/refused-address.ts';
import { say } from './output.ts';

/** In place of a network: the address that the database host sees. */
export const OBSERVED = 'observed';

const ANSWER_WITHIN_MS = 3_000;
const ANSWER_BYTES_MAX = 8_192;

/** Codes of the first messages of a connection (PostgreSQL 18, 54.7). */
const SSL_REQUEST = 80_877_103;
const PROTOCOL_3_0 = 196_608;

const int32 = (...values: number[]) => {
  const bytes = Buffer.alloc(4 * values.length);
  for (const [n, value] of values.entries()) bytes.writeInt32BE(value, 4 * n);
  return bytes;
};

async function firstMessage(socket: Socket, request: Buffer, complete: (received: Buffer) => boolean) {
  socket.write(request);
  let received = Buffer.alloc(0);
  while (!complete(received)) {
    const [part] = (await once(socket, 'data')) as [Buffer];
    received = Buffer.concat([received, part]);
    if (received.length > ANSWER_BYTES_MAX) throw new Error('the answer is too long');
  }
  return received;
}

/**
 * The address from which the database host sees this computer, which PostgreSQL names when it refuses it. That is another
 * one than the gateway sees where a network translates addresses on one of the two ways. The server answers before the
 * password is asked for, and has to prove who it is: another one could name any address.
 * @returns null if a rule admits this computer, or if no server answers
 */
export async function refusedAddress({
  direct_url: direct,
  ca_certificate: authority,
}: Pick<Schemas['Credentials'], 'direct_url' | 'ca_certificate'>): Promise<string | null> {
  const url = new URL(direct);
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  const tcp = connectTcp({ host, port: Number(url.port || 5432) });
  const limit = setTimeout(() => tcp.destroy(new Error('no answer')), ANSWER_WITHIN_MS);
  try {
    const [offer] = await firstMessage(tcp, int32(8, SSL_REQUEST), ({ length }) => length > 0);
    if (offer !== 'S'.charCodeAt(0)) return null;
    const socket = connectTls({
      socket: tcp,
      ...(isIP(host) === 0 && { servername: host }),
      host,
      ...(authority !== null && { ca: authority }),
    });
    await once(socket, 'secureConnect');
    const fields = [
      'user',
      decodeURIComponent(url.username),
      'database',
      decodeURIComponent(url.pathname.slice(1)),
    ];
    const body = Buffer.concat([int32(PROTOCOL_3_0), Buffer.from(`${fields.join('\0')}\0\0`)]);
    const answer = await firstMessage(
      socket,
      Buffer.concat([int32(body.length + 4), body]),
      (received) => received.length >= 5 && received.length > received.readInt32BE(1),
    );
    const address = refusedAddressIn(answer.toString('utf8'));
    return address !== null && isIP(address) !== 0 ? address : null;
  } catch {
    return null;
  } finally {
    clearTimeout(limit);
    tcp.destroy();
  }
}

/**
 * Says which rule is missing after a command failed, if one is. A rule for an address that the host has seen is never
 * added without being asked for: a load balancer gives one address to everybody.
 */
export async function explainRefusal(credentials: Schemas['Credentials']): Promise<void> {
  const address = await refusedAddress(credentials);
  if (address === null) return;
  const { branch_name } = credentials;
  say(
    `The database host sees this machine as ${address}, and no network rule lets that connect to ${branch_name}. \`branchgate rule add ${OBSERVED} --branch ${branch_name}\` does. Everybody behind the same address may connect then.`,
  );
}
