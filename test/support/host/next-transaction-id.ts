import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Where `ControlFileData` has `checkPointCopy.nextXid`, and where its checksum may be. */
const NEXT_XID = 64;
const CHECKSUM = { from: 200, to: 512 };
/** Ids of one file of `pg_xact`, which has two bits for each. */
const FILE_BYTES = 32 * 8_192;
const IDS_OF_FILE = 4 * FILE_BYTES;

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
 * Makes a server that was shut down give out this transaction id next, as `pg_resetwal -x` does, which the package of the
 * tests' server lacks.
 */
export function setNextTransactionId(dataDir: string, id: number): void {
  const path = join(dataDir, 'global/pg_control');
  const control = readFileSync(path);
  let at = CHECKSUM.from;
  while (crc32c(control.subarray(0, at)) !== control.readUInt32LE(at)) {
    at += 4;
    if (at > CHECKSUM.to) throw new Error('pg_control has another form');
  }
  control.writeBigUInt64LE(BigInt(id), NEXT_XID);
  control.writeUInt32LE(crc32c(control.subarray(0, at)), at);
  writeFileSync(path, control);
  const name = Math.floor(id / IDS_OF_FILE)
    .toString(16)
    .toUpperCase()
    .padStart(4, '0');
  const commits = join(dataDir, 'pg_xact', name);
  if (!existsSync(commits)) writeFileSync(commits, Buffer.alloc(FILE_BYTES), { mode: 0o600 });
}
