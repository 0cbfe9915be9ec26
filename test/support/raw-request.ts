import { Agent, type IncomingMessage, request } from 'node:http';
import type { Socket } from 'node:net';
import { getPath } from 'hono/utils/url';
import type { WireResponse } from './contract.ts';

/** How long a stream of events is read. */
const LISTEN_MS = 300;
const TIMEOUT_MS = 90_000;
/** A redirect repeats the target, which can be long. */
const MAX_HEADER_BYTES = 128 * 1024;

export interface RawRequest {
  method: string;
  /** Path and query, sent verbatim. */
  target: string;
  headers: Record<string, string>;
  /** Each character is a byte. */
  body: string | null;
}

/** An HTTP client that sends requests verbatim: `fetch` would correct deliberate mistakes. */
export class RawClient {
  readonly #base: URL;
  readonly #agent = new Agent({ keepAlive: true });

  constructor(url: string) {
    this.#base = new URL(url);
  }

  close(): void {
    this.#agent.destroy();
  }

  /** @throws Error without a complete response */
  async send(raw: RawRequest): Promise<WireResponse> {
    for (;;) {
      const response = await this.#sendOnce(raw);
      if (response !== 'retry') return response;
    }
  }

  #sendOnce({ method, target, headers, body }: RawRequest): Promise<WireResponse | 'retry'> {
    const { hostname, port } = this.#base;
    const bytes = body === null ? null : Buffer.from(body, 'latin1');
    const length = bytes && { 'content-length': String(bytes.length) };
    return new Promise((resolve, reject) => {
      const outgoing = request({
        agent: this.#agent,
        hostname,
        port,
        method,
        path: target,
        headers: { ...headers, ...length },
        maxHeaderSize: MAX_HEADER_BYTES,
        timeout: TIMEOUT_MS,
      });
      const complete = (response: IncomingMessage, bodyText: string) =>
        resolve({
          method,
          path: this.#routed(target),
          status: response.statusCode ?? 0,
          headers: headersOf(response),
          bodyText,
        });
      outgoing.on('response', (response) => {
        const chunks: Buffer[] = [];
        const finish = () => complete(response, Buffer.concat(chunks).toString('utf8'));
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.on('end', finish);
        if (!response.headers['content-type']?.startsWith('text/event-stream')) return;
        setTimeout(() => {
          finish();
          outgoing.destroy();
        }, LISTEN_MS);
      });
      outgoing.on('upgrade', (response: IncomingMessage, socket: Socket) => {
        socket.destroy();
        complete(response, '');
      });
      outgoing.on('timeout', () => outgoing.destroy(new Error(`no response within ${TIMEOUT_MS} ms`)));
      outgoing.on('error', (error: NodeJS.ErrnoException) => {
        // The server closed an idle connection while it was being reused.
        if (outgoing.reusedSocket && error.code === 'ECONNRESET') resolve('retry');
        else reject(error);
      });
      outgoing.end(bytes ?? undefined);
    });
  }

  /** @returns the path as the gateway's router parses it, with the query */
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
