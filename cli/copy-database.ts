import { type ChildProcess, spawn } from 'node:child_process';
import { createInterface } from 'node:readline';
import { Transform } from 'node:stream';
import { text } from 'node:stream/consumers';
import { pipeline } from 'node:stream/promises';
import { CommandError } from './exit-codes.ts';
import { isAttended } from './terminal.ts';

/** What the programs of both sides get. The signal ends them. */
export interface Sides {
  from: NodeJS.ProcessEnv;
  target: NodeJS.ProcessEnv;
  signal: AbortSignal;
}

/**
 * Waits for the end of a program, also after the signal has stopped it: its session at the server is gone
 * then.
 * @throws CommandError if it is not installed, and the reason of the signal
 */
export function ended(child: ChildProcess, program: string): Promise<void> {
  return new Promise((resolve, reject) => {
    let failure: Error | undefined;
    child.once('error', (error: NodeJS.ErrnoException) => {
      const isMissing = error.code === 'ENOENT';
      failure =
        error.name === 'AbortError'
          ? (error.cause as Error)
          : new CommandError('failed', isMissing ? `${program} is not installed.` : error.message);
      if (child.pid === undefined) reject(failure);
    });
    child.once('close', () => (failure ? reject(failure) : resolve()));
  });
}

const QUIETLY = ['--no-psqlrc', '--quiet', '--no-password'];

const DUMP = [
  '--no-owner',
  '--no-privileges',
  '--no-publications',
  '--no-subscriptions',
  '--no-password',
  '--format=plain',
];
const LOAD = [...QUIETLY, '--set=ON_ERROR_STOP=1', '--output=/dev/null'];

/** psql cancels its statement before it ends, so that the server does not continue with it. */
const asChild = ({ signal }: Sides, env: NodeJS.ProcessEnv) =>
  ({ env, signal, killSignal: 'SIGINT' }) as const;

/** A table of this size is copied by itself; smaller ones together. Starting a program takes a while. */
const LARGE_BYTES = 16 * 2 ** 20;

/** As `pg_dump --table` takes it. A name with a line break is copied with the small tables. */
const LARGE_TABLES = `
  select pg_table_size(c.oid), format('%I.%I', n.nspname, c.relname)
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where c.relkind = 'r' and c.relpersistence = 'p' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
    and c.relname !~ '[[:cntrl:]]' and n.nspname !~ '[[:cntrl:]]' and pg_table_size(c.oid) >= ${LARGE_BYTES}
    and not exists (select from pg_depend d where d.classid = 'pg_class'::regclass and d.objid = c.oid and d.deptype = 'e')
  order by 1 desc`;
const END_OF_LIST = 'end of the list';

/** One snapshot of the source, which its session keeps until it is ended. */
interface Snapshot {
  id: string;
  tables: { name: string; bytes: number }[];
  end: () => void;
}

/** Every program reads the same snapshot, so the copy is of one moment. */
async function openSnapshot(sides: Sides): Promise<Snapshot> {
  const options = [
    ...QUIETLY,
    '--no-align',
    '--tuples-only',
    '--field-separator=\t',
    '--set=ON_ERROR_STOP=1',
  ];
  const psql = spawn('psql', options, { ...asChild(sides, sides.from), stdio: ['pipe', 'pipe', 'inherit'] });
  const lost = ended(psql, 'psql').then(() => {
    throw new CommandError('failed', 'The source has ended the session. See the message above.');
  });
  // It is also lost when nobody reads it any more.
  lost.catch(() => {});
  psql.stdin.on('error', () => {});
  psql.stdin.write(`set idle_in_transaction_session_timeout = 0;
    begin isolation level repeatable read read only;
    select pg_export_snapshot();
    ${LARGE_TABLES};
    \\echo ${END_OF_LIST}\n`);
  const read = async () => {
    const lines: string[] = [];
    for await (const line of createInterface({ input: psql.stdout })) {
      if (line === END_OF_LIST) return lines;
      lines.push(line);
    }
    return lost;
  };
  const [id = '', ...rows] = await Promise.race([read(), lost]);
  const tables = rows.map((row) => {
    const [bytes, ...name] = row.split('\t');
    return { name: name.join('\t'), bytes: Number(bytes) };
  });
  return { id, tables, end: () => psql.stdin.end() };
}

/** What one `pg_dump` reads and one `psql` loads. */
interface Piece {
  name: string;
  /** As the source has it, without indexes; null if it is not known. */
  bytes: number | null;
  dump: string[];
  load: string[];
}

const ONE_TRANSACTION = ['--single-transaction'];

/** Tables first, which take the data without indexes, and then what needs the data. */
const SCHEMA: Piece = {
  name: 'schema',
  bytes: null,
  dump: ['--section=pre-data'],
  load: ONE_TRANSACTION,
};
/** Each statement is a transaction, because all indexes together can take longer than one may last. */
const INDEXES: Piece = {
  name: 'indexes and constraints',
  bytes: null,
  dump: ['--section=post-data'],
  load: [],
};

/** @param size bytes of the source with indexes */
function dataPieces({ tables }: Snapshot, size: number): Piece[] {
  const large = tables.map(({ name, bytes }) => ({
    ...{ name, bytes, load: ONE_TRANSACTION },
    dump: ['--section=data', `--table=${name}`],
  }));
  const rest = {
    name: large.length === 0 ? 'data' : 'other tables',
    bytes: large.length === 0 ? size : null,
    dump: ['--section=data', ...tables.map(({ name }) => `--exclude-table-data=${name}`)],
    load: ONE_TRANSACTION,
  };
  return [...large, rest];
}

const failed = () =>
  new CommandError('failed', 'The import failed, and the branch is as it was. See the message above.');

async function copyPiece(sides: Sides, snapshot: Snapshot, piece: Piece, progress: Progress): Promise<void> {
  const source = [...DUMP, `--snapshot=${snapshot.id}`, ...piece.dump];
  const dump = spawn('pg_dump', source, {
    ...asChild(sides, sides.from),
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const psql = spawn('psql', [...LOAD, ...piece.load], {
    ...asChild(sides, sides.target),
    stdio: ['pipe', 'ignore', 'inherit'],
  });
  const counter = progress.begin(piece);
  const piped = pipeline(dump.stdout, counter, psql.stdin).catch(() => {});
  const ends = await Promise.allSettled([ended(dump, 'pg_dump'), ended(psql, 'psql'), piped]);
  progress.end(piece);
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
  if (dump.exitCode !== 0 || psql.exitCode !== 0) throw failed();
}

/** Runs the pieces, `jobs` of them concurrently. When one fails, the others are waited for. */
async function inJobs(pieces: readonly Piece[], jobs: number, run: (piece: Piece) => Promise<void>) {
  const waiting = [...pieces];
  let hasFailed = false;
  const work = async () => {
    for (let piece = waiting.shift(); piece && !hasFailed; piece = waiting.shift())
      await run(piece).catch((error) => {
        hasFailed = true;
        throw error;
      });
  };
  const ends = await Promise.allSettled(Array.from({ length: jobs }, work));
  for (const end of ends) if (end.status === 'rejected') throw end.reason;
}

/**
 * Copies a database into an empty one in pieces, so that no transaction has to last for all of it. Everything is of one
 * snapshot of the source.
 * @param size bytes of the source with indexes
 * @throws CommandError after a failure or the signal, when what was made is removed
 */
export async function copyDatabase(sides: Sides, size: number, jobs: number): Promise<void> {
  const snapshot = await openSnapshot(sides);
  const progress = new Progress();
  try {
    const undo = await undoScript(sides, snapshot);
    // One transaction: nothing is made if it fails.
    await copyPiece(sides, snapshot, SCHEMA, progress);
    try {
      await inJobs(dataPieces(snapshot, size), jobs, (piece) => copyPiece(sides, snapshot, piece, progress));
      await copyPiece(sides, snapshot, INDEXES, progress);
    } catch (error) {
      await removeCopy(sides, undo);
      throw error;
    }
  } finally {
    snapshot.end();
    progress.clear();
  }
}

/** Where the statements begin that make objects. Before it, `--clean` has those that drop them. */
const FIRST_OBJECT = /^-- Name: /m;

/** Statements that drop what the copy makes, each in an order that it can be dropped in. */
async function undoScript(sides: Sides, { id }: Snapshot): Promise<string> {
  const options = [...DUMP, `--snapshot=${id}`, '--schema-only', '--clean', '--if-exists'];
  const dump = spawn('pg_dump', options, {
    ...asChild(sides, sides.from),
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [script] = await Promise.all([text(dump.stdout), ended(dump, 'pg_dump')]);
  if (dump.exitCode !== 0) throw failed();
  return script.slice(0, script.search(FIRST_OBJECT));
}

/** The branch was empty before. Is not ended by the signal that may have caused it. */
async function removeCopy({ target }: Sides, undo: string): Promise<void> {
  const psql = spawn('psql', [...QUIETLY, '--output=/dev/null'], {
    env: { ...target, PGOPTIONS: '-c lock_timeout=30s -c client_min_messages=error' },
    stdio: ['pipe', 'ignore', 'inherit'],
    detached: true,
  });
  psql.stdin.on('error', () => {});
  psql.stdin.end(undo);
  await ended(psql, 'psql');
}

/** Shows the pieces that are being copied, to a person only. */
class Progress {
  readonly #read = new Map<Piece, number>();
  #shownAt = 0;

  begin(piece: Piece): Transform {
    this.#read.set(piece, 0);
    this.#show();
    return new Transform({
      transform: (chunk: Buffer, _encoding, done) => {
        this.#read.set(piece, (this.#read.get(piece) ?? 0) + chunk.length);
        if (Date.now() - this.#shownAt > 200) this.#show();
        done(null, chunk);
      },
    });
  }

  end(piece: Piece): void {
    this.#read.delete(piece);
    this.#show();
  }

  #show(): void {
    if (!isAttended()) return;
    this.#shownAt = Date.now();
    process.stderr.write(
      `\r\x1b[K${[...this.#read].map(([piece, bytes]) => shown(piece, bytes)).join('; ')}`,
    );
  }

  clear(): void {
    if (isAttended()) process.stderr.write('\r\x1b[K');
  }
}

const MEBIBYTE = 2 ** 20;

/** A dump is about as large as its table, so the share is a rough one. */
function shown({ name, bytes: size }: Piece, bytes: number): string {
  if (size !== null && size > 0) return `${name} ${Math.min(99, Math.floor((100 * bytes) / size))} %`;
  return bytes < MEBIBYTE ? name : `${name} ${(bytes / MEBIBYTE).toFixed(0)} MiB`;
}
