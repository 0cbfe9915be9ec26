import { Socket } from 'node:net';
import { HostError } from '../process/host-error.ts';
import { type AgentSession, SESSIONS } from './tenant-code.ts';

/**
 * A message begins with its kind and its length, which does not count the kind (PostgreSQL documentation,
 * 54.7).
 */
const HEADER_BYTES = 5;
/** `ReadyForQuery`: the last message of an answer. */
const READY = 0x5a;

/**
 * Measures what a server sends. The driver keeps an answer in memory until it is complete, and a message
 * until its end.
 * @param passed the kind of messages that the reader passes on as they come, and that therefore do not count
 * @returns a function that takes the next bytes, and returns the size of the largest answer in them: with all
 *   of its last message, as soon as that has begun
 */
export function answerMeter(passed?: number): (chunk: Buffer) => number {
  const header = Buffer.alloc(HEADER_BYTES);
  let headerBytes = 0;
  /** Bytes that are missing of the message that has begun. */
  let left = 0;
  let answer = 0;
  return (chunk) => {
    let largest = 0;
    for (let at = 0; at < chunk.length; ) {
      if (left > 0) {
        const taken = Math.min(left, chunk.length - at);
        left -= taken;
        at += taken;
        continue;
      }
      header[headerBytes] = chunk[at] ?? 0;
      headerBytes += 1;
      at += 1;
      if (headerBytes < HEADER_BYTES) continue;
      headerBytes = 0;
      left = header.readUInt32BE(1) - (HEADER_BYTES - 1);
      if (header[0] !== passed) answer += HEADER_BYTES + left;
      largest = Math.max(largest, answer);
      if (header[0] === READY) answer = 0;
    }
    return largest;
  };
}

/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

/** A socket that ends when the server sends more than this kind of session reads. */
export function boundedSocket(kind: AgentSession): Socket {
  const bound = SESSIONS[kind];
  const socket = new Socket();
  const answerBytes = answerMeter();
  socket.on('data', (chunk: Buffer) => {
    if (answerBytes(chunk) <= bound.answer && socket.bytesRead <= bound.bytes) return;
    socket.destroy(
      new HostError('STATEMENT_REFUSED', 'the database sent too much', { sqlstate: PROGRAM_LIMIT }),
    );
  });
  return socket;
}
