import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

/** One client that is never without a request: it asks again as soon as it is answered. */
async function askOn(socket: Socket, request: string, until: number): Promise<number> {
  let answered = 0;
  while (performance.now() < until) {
    socket.write(request);
    const status = await answerOf(socket);
    if (status !== 200) throw new Error(`answered with ${status}`);
    answered += 1;
  }
  return answered;
}

/** Reads one answer to its end (RFC 9112 section 6). @returns its status */
function answerOf(socket: Socket): Promise<number> {
  return new Promise((resolve, reject) => {
    let text = '';
    const take = (chunk: string) => {
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
      socket.off('data', take).off('close', lost);
      settle();
    };
    socket.on('data', take).on('close', lost);
  });
}

/**
 * Asks as fast as the answers come, over connections that are kept. A client of few instructions, so that it is not the
 * client that is measured.
 * @returns answers a second
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
    const counts = await Promise.all(sockets.map((socket) => askOn(socket, request, start + milliseconds)));
    return counts.reduce((sum, count) => sum + count, 0) / ((performance.now() - start) / 1000);
  } finally {
    for (const socket of sockets) socket.destroy();
  }
}
