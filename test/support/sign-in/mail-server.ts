import { createServer, type IncomingHttpHeaders } from 'node:http';
import type { AddressInfo } from 'node:net';

export interface PostedMail {
  headers: IncomingHttpHeaders;
  body: { from: string; to: string; subject: string; text: string; html: string };
}

/** A mail server that records posted mails and responds with the status that a test sets. */
export async function startMailServer() {
  const posted: PostedMail[] = [];
  let status = 200;
  let held: Promise<void> | null = null;
  const server = createServer(async (request, response) => {
    if (request.method !== 'POST') return response.end('{}');
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    posted.push({ headers: request.headers, body: JSON.parse(text) });
    const hold = held;
    held = null;
    await hold;
    response.writeHead(status, { location: '/elsewhere' }).end('{}');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/send`,
    posted,
    answersWith(code: number) {
      status = code;
    },
    /** Delays the response to the next mail until the returned function is called. */
    holdsNext(): () => void {
      const { promise, resolve } = Promise.withResolvers<void>();
      held = promise;
      return resolve;
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(resolve);
        server.closeAllConnections();
      }),
  };
}
