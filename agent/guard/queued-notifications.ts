import { closeSync, fstatSync, openSync, readdirSync, readSync } from 'node:fs';
import { endianness } from 'node:os';
import { join } from 'node:path';

const PAGE_BYTES = 8_192;
/** Each entry begins with its length and the oid of the database it was sent in, four bytes each. */
const DATABASE_AT = 4;
/** An entry without a database fills the rest of a page. */
const NO_DATABASE = 0;

/**
 * In which databases the queue of NOTIFY was filled: oid → pages. No view shows who has sent a notification, so
 * the first entry of each page is read from PostgreSQL's files. The last pages may still be in its memory.
 */
export function queuedByDatabase(dataDir: string): Map<string, number> {
  const folder = join(dataDir, 'pg_notify');
  const counts = new Map<string, number>();
  for (const name of readdirSync(folder)) {
    for (const database of databasesIn(join(folder, name)))
      counts.set(database, (counts.get(database) ?? 0) + 1);
  }
  return counts;
}

function databasesIn(path: string): string[] {
  const file = openSync(path, 'r');
  try {
    const found: string[] = [];
    const oid = Buffer.alloc(4);
    for (let page = 0; page < fstatSync(file).size; page += PAGE_BYTES) {
      readSync(file, oid, 0, oid.length, page + DATABASE_AT);
      const database = endianness() === 'LE' ? oid.readUInt32LE() : oid.readUInt32BE();
      if (database !== NO_DATABASE) found.push(String(database));
    }
    return found;
  } finally {
    closeSync(file);
  }
}
