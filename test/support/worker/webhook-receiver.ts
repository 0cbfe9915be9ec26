import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Webhook } from 'standardwebhooks';
import type { EventBody } from '../../../edge/events/event-types.ts';

export interface ReceivedWebhook {
  id: string;
  timestamp: number;
  event: EventBody;
}

/** An endpoint that verifies each delivery with the `standardwebhooks` package. */
export async function startReceiver() {
  const received: ReceivedWebhook[] = [];
  const invalid: string[] = [];
  let verifier: Webhook | null = null;
  let respond: (response: ServerResponse) => void = (response) => response.end();
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const chunk of request.setEncoding('utf8')) body += chunk;
    const headers = request.headers as Record<string, string>;
    try {
      const event = verifier?.verify(body, headers) as EventBody;
      const id = headers['webhook-id'] ?? '';
      received.push({ id, timestamp: Number(headers['webhook-timestamp']), event });
    } catch (error) {
      invalid.push(String(error));
    }
    respond(response);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook`,
    received,
    invalid,
    verifyWith(secret: string) {
      verifier = new Webhook(secret);
    },
    respondWith(status: number, headers: Record<string, string> = {}) {
      respond = (response) => response.writeHead(status, headers).end();
    },
    /** Requests stay without a response. */
    hang() {
      respond = () => {};
    },
    stop: () =>
      new Promise((resolve) => {
        server.close(resolve);
        server.closeAllConnections();
      }),
  };
}
