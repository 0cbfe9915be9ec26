import { Agent, type IncomingMessage, request } from 'node:http';
import type { Socket } from 'node:net';
import { getPath } from 'hono/utils/url';
import type { WireResponse } from './contract.ts';

/** How long a stream of events is listened to. */
const LISTEN_MS = 300;
const ANSWER_WITHIN_MS = 90_000;

export interface RawRequest {
  method: string;
  /** Path and query, sent as they are. */
  target: string;
  headers: Record<string, string>;
  /** Each character is a byte. */
  body: string | null;
}

/** A client of HTTP that mends nothing: `fetch` would put right what tests mean to be wrong. */
export class RawClient {
  readonly #base: URL;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(url: string) {
    this.#base = new URL(url);
  }

  close(): void {
    this.#agent.destroy();
  }

  /** @throws Error when there is no answer, or none that ends */
  async send(raw: RawRequest): Promise<WireResponse> {
    for (;;) {
      const answer = await this.#sendOnce(raw);
      if (answer !== 'again') return answer;
    }
  }

  #sendOnce({ method, target, headers, body }: RawRequest): Promise<WireResponse | 'again'> {
    const { hostname, port } = this.#base;
    const bytes = body === null ? null : Buffer.from(body, 'latin1');
    const length = bytes && { 'content-length': String(bytes.length) };
    return new Promise((resolve, reject) => {
      const asking = request({
        agent: this.#agent,
        hostname,
        port,
        method,
        path: target,
        headers: { ...headers, ...length },
        timeout: ANSWER_WITHIN_MS,
      });
      const answered = (response: IncomingMessage, bodyText: string) =>
        resolve({
          method,
          path: this.#routed(target),
          status: response.statusCode ?? 0,
          headers: headersOf(response),
          bodyText,
        });
      asking.on('response', (response) => {
        const chunks: Buffer[] = [];
        const finish = () => answered(response, Buffer.concat(chunks).toString('utf8'));
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', finish);
        if (!response.headers['content-type']?.startsWith('text/event-stream')) return;
        setTimeout(() => {
          finish();
          asking.destroy();
        }, LISTEN_MS);
      });
      asking.on('upgrade', (response: IncomingMessage, socket: Socket) => {
        socket.destroy();
        answered(response, '');
      });
      asking.on('timeout', () => asking.destroy(new Error(`no answer within ${ANSWER_WITHIN_MS} ms`)));
      asking.on('error', (error: NodeJS.ErrnoException) => {
        // The server closed a connection that was idle at the moment when it was used again.
        if (asking.reusedSocket && error.code === 'ECONNRESET') resolve('again');
        else reject(error);
      });
      asking.end(bytes ?? undefined);
    });
  }

  /** The path as the gateway's router reads it, with the query. */
  #routed(target: string): string {
    const url = new URL(this.#base.origin + target);
    return getPath(new Request(url)) + url.search;
  }
}

function headersOf({ rawHeaders }: IncomingMessage): Headers {
  const headers = new Headers();
  for (let n = 0; n + 1 < rawHeaders.length; n += 2) {
    headers.append(rawHeaders[n] ?? '', rawHeaders[n + 1] ?? '');
  }
  return headers;
}
