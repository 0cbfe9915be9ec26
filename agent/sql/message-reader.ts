import type { Readable } from 'node:stream';
import type { Taken } from './wire.ts';

const ENDS = ['readable', 'end', 'close', 'error'] as const;

/** Resolves when a stream has more bytes, or has ended. */
const untilReadable = (stream: Readable): Promise<void> =>
  new Promise((resolve) => {
    const done = () => {
      for (const event of ENDS) stream.off(event, done);
      resolve();
    };
    for (const event of ENDS) stream.on(event, done);
  });

/** Reads the messages of a login from a stream, which is passed on afterwards. */
export class MessageReader {
  readonly #stream: Readable;
  readonly #ended: () => Error;
  #pending: Buffer = Buffer.alloc(0);

  /** @param ended makes the error of a stream that has ended */
  constructor(stream: Readable, ended: () => Error) {
    this.#stream = stream;
    this.#ended = ended;
  }

  /** @param read returns null as long as bytes are missing @throws as `read`, and the error of the end */
  async take<T>(read: (bytes: Buffer) => Taken<T> | null): Promise<T> {
    for (;;) {
      const taken = read(this.#pending);
      if (taken) {
        this.#pending = this.#pending.subarray(taken.length);
        return taken.value;
      }
      const chunk: Buffer | null = this.#stream.read();
      if (chunk) this.#pending = Buffer.concat([this.#pending, chunk]);
      else if (this.#stream.readableEnded || this.#stream.destroyed) throw this.#ended();
      else await untilReadable(this.#stream);
    }
  }

  /** Bytes after the messages that were taken. */
  rest = (): Buffer => this.#pending;
}
