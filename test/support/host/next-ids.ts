import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Where `ControlFileData` has fields of `checkPointCopy`, and where its checksum may be. */
const NEXT_XID = 64;
const NEXT_MULTIXACT = 76;
const NEXT_MEMBER = 80;
const CHECKSUM = { from: 200, to: 512 };
const PAGE_BYTES = 8_192;
const FILE_BYTES = 32 * PAGE_BYTES;
/** Ids of one file of `pg_xact`, which has two bits for each. */
const IDS_OF_FILE = 4 * FILE_BYTES;
/** Multixacts of one file of `pg_multixact/offsets`, which has four bytes for each. */
const MULTIXACTS_OF_FILE = FILE_BYTES / 4;
/** Members of one page of `pg_multixact/members`. */
const MEMBERS_OF_PAGE = 1_636;

/** CRC-32C, which Node.js does not have. */
function crc32c(bytes: Uint8Array): number {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit += 1) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return ~crc >>> 0;
}

/**
 * Makes a server that was shut down give out these ids next, as `pg_resetwal` does, which the package of the tests' server
 * lacks.
 */
function setControl(dataDir: string, set: (control: Buffer) => void): void {
  const path = join(dataDir, 'global/pg_control');
  const control = readFileSync(path);
  let at = CHECKSUM.from;
  while (crc32c(control.subarray(0, at)) !== control.readUInt32LE(at)) {
    at += 4;
    if (at > CHECKSUM.to) throw new Error('pg_control has another form');
  }
  set(control);
  control.writeUInt32LE(crc32c(control.subarray(0, at)), at);
  writeFileSync(path, control);
}

/** Makes the file that PostgreSQL would have, if there is none. */
function makeFile(folder: string, number: number, bytes = FILE_BYTES): void {
  const path = join(folder, number.toString(16).toUpperCase().padStart(4, '0'));
  if (!existsSync(path)) writeFileSync(path, Buffer.alloc(bytes), { mode: 0o600 });
}

export function setNextTransactionId(dataDir: string, id: number): void {
  setControl(dataDir, (control) => control.writeBigUInt64LE(BigInt(id), NEXT_XID));
  makeFile(join(dataDir, 'pg_xact'), Math.floor(id / IDS_OF_FILE));
}

export function setNextMultixact(dataDir: string, id: number): void {
  setControl(dataDir, (control) => control.writeUInt32LE(id, NEXT_MULTIXACT));
  makeFile(join(dataDir, 'pg_multixact/offsets'), Math.floor(id / MULTIXACTS_OF_FILE));
}

/** @param offset where the members of the next multixact are stored */
export function setNextMember(dataDir: string, offset: number): void {
  setControl(dataDir, (control) => control.writeUInt32LE(offset, NEXT_MEMBER));
  const page = Math.floor(offset / MEMBERS_OF_PAGE);
  makeFile(join(dataDir, 'pg_multixact/members'), Math.floor(page / 32), ((page % 32) + 1) * PAGE_BYTES);
}
