/**
 * The table of contents of an archive of pg_dump (`toc.dat` of its directory format). PostgreSQL describes the form in
 * its source only (`pg_backup_archiver.c`), so a version that is not known is refused.
 */

/** One object of a dump, or a part of one. */
export interface ArchiveEntry {
  id: number;
  /** As pg_dump names it: `TABLE`, `FK CONSTRAINT`, `COMMENT`. */
  kind: string;
  /** Null: it is in none, or is one. */
  schema: string | null;
  /** Its name, for some kinds with arguments or with that of its table. */
  tag: string;
  /** The statements that make it; empty for some kinds. */
  definition: string;
  /** The statement that drops it; null for what goes with another object. */
  drop: string | null;
  /** Its object id and that of its catalog; 0 if it has none. */
  oid: number;
  catalog: number;
  /** Whether it is made before the rows, is rows, or is made after them. */
  section: 'none' | 'pre-data' | 'data' | 'post-data';
  /** Identifiers of the entries that it needs. */
  dependencies: readonly number[];
  /** Of a table or materialized view: how it is stored. */
  accessMethod: string | null;
}

/** In an order in which they can be made. */
export type Archive = readonly ArchiveEntry[];

/** It is no archive, or one of a version that this reader does not know. */
export class ArchiveError extends Error {
  override readonly name = 'ArchiveError';
}

const MAGIC = 'PGDMP';
/** Of pg_dump 17 and 18. */
const VERSION = '1.16';
/** `archTar`: what a directory writes into its table of contents. */
const FORMAT = 3;
const DIRECTORY_FORMAT = 5;
/** Entries of no object: settings of the dump and the database itself. */
const HEADERS = new Set(['ENCODING', 'STDSTRINGS', 'SEARCHPATH', 'DATABASE', 'DATABASE PROPERTIES']);
const SECTIONS: readonly ArchiveEntry['section'][] = ['none', 'none', 'pre-data', 'data', 'post-data'];
/** `sec, min, hour, mday, mon, year, isdst` of its making. */
const TIMES = 7;

class Reader {
  readonly #bytes: Buffer;
  #at = 0;
  #intSize = 4;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
  }

  byte(): number {
    const byte = this.#bytes[this.#at];
    if (byte === undefined) throw new ArchiveError('the archive ends in the middle');
    this.#at += 1;
    return byte;
  }

  text(length: number): string {
    const end = this.#at + length;
    if (end > this.#bytes.length) throw new ArchiveError('the archive ends in the middle');
    const text = this.#bytes.toString('utf8', this.#at, end);
    this.#at = end;
    return text;
  }

  sizes(): void {
    this.#intSize = this.byte();
    if (this.#intSize !== 4) throw new ArchiveError(`the archive has integers of ${this.#intSize} bytes`);
    this.byte();
  }

  int(): number {
    const sign = this.byte() === 0 ? 1 : -1;
    let value = 0;
    for (let at = 0; at < this.#intSize; at += 1) value += this.byte() * 2 ** (8 * at);
    return sign * value;
  }

  string(): string | null {
    const length = this.int();
    return length < 0 ? null : this.text(length);
  }
}

/**
 * @param toc the content of `toc.dat`
 * @throws ArchiveError
 */
export function readArchive(toc: Buffer): Archive {
  const reader = new Reader(toc);
  if (reader.text(MAGIC.length) !== MAGIC) throw new ArchiveError('it is no archive of pg_dump');
  const version = `${reader.byte()}.${reader.byte()}`;
  reader.byte();
  if (version !== VERSION) throw new ArchiveError(`the archive has version ${version}, not ${VERSION}`);
  reader.sizes();
  const format = reader.byte();
  if (format !== FORMAT && format !== DIRECTORY_FORMAT)
    throw new ArchiveError(`the archive has the format ${format}`);
  // How it is compressed.
  reader.byte();
  for (let at = 0; at < TIMES; at += 1) reader.int();
  // The database, and the versions of the server and of the program.
  for (let at = 0; at < 3; at += 1) reader.string();
  const entries = Array.from({ length: Math.max(0, reader.int()) }, () => readEntry(reader));
  return entries.filter(({ kind }) => !HEADERS.has(kind));
}

function readEntry(reader: Reader): ArchiveEntry {
  const id = reader.int();
  // Whether it has data.
  reader.int();
  const catalog = Number(reader.string());
  const oid = Number(reader.string());
  const tag = reader.string() ?? '';
  const kind = reader.string() ?? '';
  const section = SECTIONS[reader.int()] ?? 'none';
  const definition = reader.string() ?? '';
  const drop = reader.string();
  // How it is copied.
  reader.string();
  const schema = reader.string();
  // Its tablespace, which a copy does not have.
  reader.string();
  const accessMethod = reader.string();
  // The kind of the relation, the owner and a former option of tables.
  reader.int();
  reader.string();
  reader.string();
  const dependencies: number[] = [];
  for (let needed = reader.string(); needed !== null; needed = reader.string())
    dependencies.push(Number(needed));
  // The file of its data.
  reader.string();
  return {
    id,
    kind,
    schema: schema === '' ? null : schema,
    tag,
    definition,
    section,
    dependencies,
    oid,
    catalog,
    drop: drop === '' ? null : drop,
    accessMethod: accessMethod === '' ? null : accessMethod,
  };
}
