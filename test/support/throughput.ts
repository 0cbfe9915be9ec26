import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

/**
 * Runs one client that sends its next request as soon as it has a response.
 * @returns the number of responses
 */
async function sendOn(socket: Socket, request: string, until: number): Promise<number> {
  let count = 0;
  while (performance.now() < until) {
    socket.write(request);
    const status = await readResponse(socket);
    if (status !== 200) throw new Error(`the response has status ${status}`);
    count += 1;
  }
  return count;
}

/** Reads one response to its end (RFC 9112 section 6). @returns its status */
function readResponse(socket: Socket): Promise<number> {
  return new Promise((resolve, reject) => {
    let text = '';
    const receive = (chunk: string) => {
      text += chunk;
      const head = text.indexOf('\r\n\r\n');
      if (head < 0) return;
      const length = /\r\ncontent-length: (\d+)/i.exec(text.slice(0, head))?.[1];
      const isWhole =
        length === undefined ? text.endsWith('\r\n0\r\n\r\n') : text.length >= head + 4 + Number(length);
      if (isWhole) end(() => resolve(Number(text.slice(9, 12))));
    };
    const lost = () => end(() => reject(new Error('the connection was lost')));
    const end = (settle: () => void) => {
      socket.off('data', receive).off('close', lost);
      settle();
    };
    socket.on('data', receive).on('close', lost);
  });
}

/**
 * Measures throughput over keep-alive connections. The clients execute few instructions, so that they are not
 * the bottleneck.
 * @returns responses per second
 */
export async function throughput({
  url,
  token = null,
  clients,
  milliseconds,
}: {
  url: string;
  token?: string | null;
  clients: number;
  milliseconds: number;
}): Promise<number> {
  const { host, hostname, port, pathname } = new URL(url);
  const authorization = token === null ? '' : `Authorization: Bearer ${token}\r\n`;
  const request = `GET ${pathname} HTTP/1.1\r\nHost: ${host}\r\n${authorization}\r\n`;
  const sockets = Array.from({ length: clients }, () =>
    connect(Number(port), hostname).setNoDelay(true).setEncoding('latin1'),
  );
  try {
    await Promise.all(sockets.map((socket) => once(socket, 'connect')));
    const start = performance.now();
    const counts = await Promise.all(sockets.map((socket) => sendOn(socket, request, start + milliseconds)));
    return counts.reduce((sum, count) => sum + count, 0) / ((performance.now() - start) / 1000);
  } finally {
    for (const socket of sockets) socket.destroy();
  }
}
