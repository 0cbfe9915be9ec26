import { randomUUID } from 'node:crypto';
import { closeSync, mkdtempSync, openSync, read, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { HostError } from '../process/host-error.ts';

const readFile = promisify(read);

const KB = 2 ** 10;
const MB = 2 ** 20;

/** Bytes of a part of a reply, of a whole reply, and of all replies that wait to be read. */
export const REPLY_BOUNDS = { part: 256 * KB, reply: 10 * MB, ofTenant: 64 * MB, ofHost: 256 * MB } as const;

/** A reply of which nobody reads the next part is dropped. */
const UNREAD_FOR_MS = 30_000;

/** SQLSTATE `program_limit_exceeded` and `too_many_connections`. */
const TOO_LARGE = '54000';
const TOO_MANY = '53300';

const refused = (sqlstate: string, message: string) =>
  new HostError('STATEMENT_REFUSED', message, { sqlstate });

/** Length of the text in `bytes` without a character that is cut at the end. */
export function wholeCharacters(bytes: Buffer): number {
  const lead = bytes.findLastIndex((byte) => (byte & 0xc0) !== 0x80);
  const first = bytes[lead] ?? 0;
  const length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  return lead !== -1 && lead + length > bytes.length ? lead : bytes.length;
}

/** Bytes on the disk that the replies of all tenants take. */
class Room {
  readonly #used = new Map<string, number>();

  /** @throws HostError STATEMENT_REFUSED */
  take(tenant: string, bytes: number): void {
    const all = [...this.#used.values()].reduce((sum, used) => sum + used, 0);
    const own = this.#used.get(tenant) ?? 0;
    if (own + bytes > REPLY_BOUNDS.ofTenant || all + bytes > REPLY_BOUNDS.ofHost)
      throw refused(TOO_MANY, 'too many replies wait to be read: read them, then try again');
    this.#used.set(tenant, own + bytes);
  }

  free(tenant: string, bytes: number): void {
    const left = (this.#used.get(tenant) ?? 0) - bytes;
    if (left > 0) this.#used.set(tenant, left);
    else this.#used.delete(tenant);
  }
}

/**
 * JSON text that is written piece by piece. A short one stays in memory. A long one is in a file that has no name, so a
 * killed agent leaves none.
 */
export class Reply {
  readonly #room: Room;
  readonly #tenant: string;
  #text = '';
  #file: number | null = null;
  /** Bytes in the file. */
  #written = 0;

  constructor(room: Room, tenant: string) {
    this.#room = room;
    this.#tenant = tenant;
  }

  /** @throws HostError STATEMENT_REFUSED for a reply that is too large, or for lack of room */
  add(text: string): void {
    this.#text += text;
    if (this.#text.length >= REPLY_BOUNDS.part) this.#write();
  }

  #write(): void {
    const bytes = Buffer.from(this.#text);
    this.#text = '';
    if (this.#written + bytes.length > REPLY_BOUNDS.reply)
      throw refused(
        TOO_LARGE,
        `the reply has more than ${REPLY_BOUNDS.reply / MB} MiB; a statement outside of a batch may have taken effect`,
      );
    this.#room.take(this.#tenant, bytes.length);
    this.#file ??= openUnnamed();
    this.#written += bytes.length;
    for (let at = 0; at < bytes.length; ) at += writeSync(this.#file, bytes, at);
  }

  /** @returns the whole text if it is one part; null if it has to be read */
  finish(): { text: string; bytes: number } | null {
    const bytes = Buffer.byteLength(this.#text);
    if (this.#file === null && bytes <= REPLY_BOUNDS.part) return { text: this.#text, bytes };
    this.#write();
    return null;
  }

  /** Length of a reply that was finished. */
  get bytes(): number {
    return this.#written;
  }

  /** The part that begins at this byte. @throws HostError INVALID_CALL */
  async read(offset: number): Promise<{ text: string; bytes: number }> {
    const length = Math.min(REPLY_BOUNDS.part, this.#written - offset);
    if (this.#file === null || length <= 0) throw new HostError('INVALID_CALL', 'the reply has no such part');
    const { buffer, bytesRead } = await readFile(this.#file, Buffer.alloc(length), 0, length, offset);
    const bytes = wholeCharacters(buffer.subarray(0, bytesRead));
    return { text: buffer.toString('utf8', 0, bytes), bytes };
  }

  close(): void {
    this.#text = '';
    if (this.#file === null) return;
    closeSync(this.#file);
    this.#file = null;
    this.#room.free(this.#tenant, this.#written);
  }
}

function openUnnamed(): number {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-sql-'));
  try {
    return openSync(join(folder, 'reply'), 'wx+', 0o600);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

interface Kept {
  reply: Reply;
  timer: NodeJS.Timeout;
  /** Parts that are being read. */
  reads: number;
}

/** The number of a file that is closed while it is read may already be that of another tenant's. */
function closeUnread({ reply, reads }: Kept): void {
  if (reads === 0) reply.close();
}

/** The replies that are written, and those of which parts are left to read. */
export class Replies {
  readonly #room = new Room();
  readonly #kept = new Map<string, Kept>();

  begin = (tenant: string): Reply => new Reply(this.#room, tenant);

  /** Keeps a reply until it is read. @returns its id */
  keep(reply: Reply): string {
    const id = randomUUID();
    const timer = setTimeout(() => this.#drop(id), UNREAD_FOR_MS).unref();
    this.#kept.set(id, { reply, timer, reads: 0 });
    return id;
  }

  /** @throws HostError INVALID_CALL */
  async read(id: string, offset: number): Promise<{ text: string; bytes: number }> {
    const kept = this.#kept.get(id);
    if (!kept) throw new HostError('INVALID_CALL', 'there is no such reply');
    kept.timer.refresh();
    kept.reads += 1;
    try {
      const part = await kept.reply.read(offset);
      if (offset + part.bytes >= kept.reply.bytes) this.#drop(id);
      return part;
    } finally {
      kept.reads -= 1;
      if (!this.#kept.has(id)) closeUnread(kept);
    }
  }

  #drop(id: string): void {
    const kept = this.#kept.get(id);
    this.#kept.delete(id);
    clearTimeout(kept?.timer);
    if (kept) closeUnread(kept);
  }

  close(): void {
    for (const id of [...this.#kept.keys()]) this.#drop(id);
  }
}
