import { type SqlError, violation } from './admit-client.ts';

/** Messages of PostgreSQL's protocol until a client is logged in (PostgreSQL documentation, 54.7). */

/** Version 3.0 of the protocol. */
const VERSION = 196_608;
/** PostgreSQL's own bounds (`MAX_STARTUP_PACKET_LENGTH`, `PG_MAX_AUTH_TOKEN_LENGTH`). */
const STARTUP_BYTES_MAX = 10_000;
const PASSWORD_BYTES_MAX = 65_536;
/** A server's message until the login is complete. */
const ANSWER_BYTES_MAX = 65_536;

const LENGTH_BYTES = 4;
const KIND_BYTES = 1;
const PASSWORD = 0x70;

/** A message that was read from the beginning of bytes. */
export interface Taken<T> {
  value: T;
  /** How many bytes it has. */
  length: number;
}

/** A client's request for a session. */
export interface Startup {
  user: string;
  database: string;
  /** All parameters, user and database included. */
  parameters: ReadonlyMap<string, string>;
}

/**
 * The first message of a client.
 * @returns null as long as bytes are missing
 * @throws Violation for any other message
 */
export function takeStartup(bytes: Buffer): Taken<Startup> | null {
  if (bytes.length < LENGTH_BYTES) return null;
  const length = bytes.readInt32BE(0);
  if (length <= 2 * LENGTH_BYTES || length > STARTUP_BYTES_MAX)
    throw violation('the first message has no valid length');
  if (bytes.length < 2 * LENGTH_BYTES) return null;
  if (bytes.readInt32BE(LENGTH_BYTES) !== VERSION)
    throw violation('the first message must be the startup message of version 3.0 of the protocol');
  if (bytes.length < length) return null;
  const parameters = readParameters(bytes.subarray(2 * LENGTH_BYTES, length));
  const user = parameters.get('user') ?? '';
  const database = parameters.get('database') || user;
  for (const name of parameters.keys())
    if (name === 'replication' || name.startsWith('_pq_.'))
      throw violation(`${name} is not served over WebSocket`);
  return { value: { user, database, parameters }, length };
}

function readParameters(bytes: Buffer): Map<string, string> {
  const texts = bytes.toString('utf8').split('\0');
  // The last value and the list both end with a zero.
  if (texts.pop() !== '' || texts.pop() !== '' || texts.length % 2 !== 0)
    throw violation('the startup message is malformed');
  const parameters = new Map<string, string>();
  for (let at = 0; at < texts.length; at += 2) {
    const [name = '', value = ''] = texts.slice(at, at + 2);
    // Two logins in one message could be read differently by the next reader.
    if (name === '' || parameters.has(name)) throw violation('the startup message is malformed');
    parameters.set(name, value);
  }
  return parameters;
}

/** `PasswordMessage`. @returns null as long as bytes are missing @throws Violation for any other message */
export function takePassword(bytes: Buffer): Taken<string> | null {
  if (bytes.length < KIND_BYTES) return null;
  if (bytes[0] !== PASSWORD) throw violation('the client has sent no password');
  const message = takeMessage(bytes, PASSWORD_BYTES_MAX);
  if (!message) return null;
  const { body } = message.value;
  if (body.at(-1) !== 0 || body.indexOf(0) !== body.length - 1) throw violation('the password is malformed');
  return { value: body.toString('utf8', 0, body.length - 1), length: message.length };
}

export interface Answer {
  kind: string;
  body: Buffer;
}

/** A message of the server. @returns null as long as bytes are missing @throws Violation */
export const takeAnswer = (bytes: Buffer): Taken<Answer> | null => takeMessage(bytes, ANSWER_BYTES_MAX);

function takeMessage(bytes: Buffer, max: number): Taken<Answer> | null {
  if (bytes.length < KIND_BYTES + LENGTH_BYTES) return null;
  const length = bytes.readInt32BE(KIND_BYTES);
  if (length < LENGTH_BYTES || length > max) throw violation('a message has no valid length');
  if (bytes.length < KIND_BYTES + length) return null;
  const kind = String.fromCharCode(bytes[0] ?? 0);
  return {
    value: { kind, body: bytes.subarray(KIND_BYTES + LENGTH_BYTES, KIND_BYTES + length) },
    length: KIND_BYTES + length,
  };
}

/** The first message to a server. */
export function startupMessage(parameters: ReadonlyMap<string, string>): Buffer {
  const list = [...parameters].map(([name, value]) => `${name}\0${value}\0`).join('');
  const body = Buffer.from(`${list}\0`);
  const head = Buffer.alloc(2 * LENGTH_BYTES);
  head.writeInt32BE(head.length + body.length, 0);
  head.writeInt32BE(VERSION, LENGTH_BYTES);
  return Buffer.concat([head, body]);
}

/** Any other message. @param kind one character */
export function messageOf(kind: string, ...parts: readonly (string | Buffer | number)[]): Buffer {
  const body = Buffer.concat(
    parts.map((part) => (typeof part === 'number' ? int32(part) : Buffer.from(part))),
  );
  return Buffer.concat([Buffer.from(kind), int32(LENGTH_BYTES + body.length), body]);
}

function int32(value: number): Buffer {
  const bytes = Buffer.alloc(LENGTH_BYTES);
  bytes.writeInt32BE(value);
  return bytes;
}

/** Kinds of `Authentication…`. */
export const AUTHENTICATION = { ok: 0, cleartext: 3, sasl: 10, saslContinue: 11, saslFinal: 12 } as const;

/** `ErrorResponse`, after which the connection ends. */
export const errorResponse = ({ severity = 'FATAL', code, message }: SqlError): Buffer =>
  messageOf('E', `S${severity}\0V${severity}\0C${code}\0M${message}\0\0`);

/** Code and message of an `ErrorResponse`. */
export function readError(body: Buffer): { code: string; message: string } {
  const fields = new Map(
    body
      .toString('utf8')
      .split('\0')
      .map((field) => [field.slice(0, 1), field.slice(1)]),
  );
  return { code: fields.get('C') ?? 'XX000', message: fields.get('M') ?? '' };
}
