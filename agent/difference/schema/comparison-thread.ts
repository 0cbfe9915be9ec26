import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { HostError } from '../../process/host-error.ts';
import { pollUntil } from '../../process/loops.ts';
import type { CopiedTables, SourceChange } from './copied-schema.ts';

/** Marks the `workerData` of the thread that compares schemas. */
export const COMPARISON = 'schema-comparison';

/** Runs a query in the snapshot of one side, with the values of `pg`'s default types. */
export type CatalogQuery = (text: string, values?: unknown[]) => Promise<{ rows: Record<string, unknown>[] }>;

export type SideName = 'before' | 'after';

/** What the thread does with one side, or with both. */
export interface Task {
  kind: typeof COMPARISON;
  /** `before` is a copy of `after`, some time after. `sameRoles`: the roles of both servers have the same names. */
  before: { followed: CopiedTables; sameRoles: boolean };
}

export interface Outcome {
  /** How the schema of a copy differs from that of its source. */
  followed: SourceChange[];
}

/** From the thread: a query that it needs, or the end. */
export type FromThread =
  | { query: number; side: SideName; text: string; values: unknown[] | undefined }
  | { outcome: Outcome };

/** To the thread: the rows of a query. A failed query ends the thread. */
export interface ToThread {
  query: number;
  rows: Record<string, unknown>[];
}

/** A comparison takes no longer. Milliseconds. */
const WITHIN_MS = 20_000;
/** The heap of the thread; a schema that needs more is refused. */
const HEAP_MB = 512;
/** Threads that run concurrently on a host: each takes a processor and a heap. */
const THREADS = 2;
/** For one of them. A session that waits longer would have too little time left. */
const WAIT_MS = 2_000;

/** The program of the agent: one file when it is installed, its sources otherwise. */
const PROGRAM = fileURLToPath(
  import.meta.url.endsWith('.ts') ? new URL('../../main.ts', import.meta.url).href : import.meta.url,
);
/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

let running = 0;

const tooLarge = () =>
  new HostError('STATEMENT_REFUSED', 'the schema has too many objects to compare', {
    sqlstate: PROGRAM_LIMIT,
  });
const tookTooLong = () => new HostError('TIME_LIMIT_REACHED', 'the comparison of the schemas took too long');

/**
 * Reads and compares schemas in a thread of its own, which is ended after a time: how long it takes depends
 * on schemas that tenants made. Their sessions stay in the agent, which runs the queries of the thread.
 * @param within milliseconds
 * @throws HostError HOST_BUSY, TIME_LIMIT_REACHED, STATEMENT_REFUSED for a schema that is too large; what a
 *   query throws
 */
export async function runInThread(
  before: Task['before'],
  queries: Partial<Record<SideName, CatalogQuery>>,
  signal: AbortSignal,
  within = WITHIN_MS,
): Promise<Outcome> {
  if (!(await pollUntil(async () => running < THREADS, { within: WAIT_MS, every: 50 })))
    throw new HostError('HOST_BUSY', 'too many schemas are being compared');
  running += 1;
  try {
    return await inThread(before, queries, signal, within);
  } finally {
    running -= 1;
  }
}

async function inThread(
  before: Task['before'],
  queries: Partial<Record<SideName, CatalogQuery>>,
  signal: AbortSignal,
  within: number,
): Promise<Outcome> {
  const workerData: Task = { kind: COMPARISON, before };
  const thread = new Worker(PROGRAM, { workerData, resourceLimits: { maxOldGenerationSizeMb: HEAP_MB } });
  const { promise, resolve, reject } = Promise.withResolvers<Outcome>();
  const abort = () => reject(tookTooLong());
  const timeout = setTimeout(abort, within);
  signal.addEventListener('abort', abort);
  const respond = async (query: number, side: SideName, text: string, values: unknown[] | undefined) => {
    const found = await queries[side]?.(text, values);
    thread.postMessage({ query, rows: found?.rows ?? [] } satisfies ToThread);
  };
  thread.on('message', (message: FromThread) => {
    if ('outcome' in message) resolve(message.outcome);
    else respond(message.query, message.side, message.text, message.values).catch(reject);
  });
  thread.on('error', (error: NodeJS.ErrnoException) =>
    reject(error.code === 'ERR_WORKER_OUT_OF_MEMORY' ? tooLarge() : error),
  );
  try {
    return await promise;
  } finally {
    clearTimeout(timeout);
    signal.removeEventListener('abort', abort);
    await thread.terminate();
  }
}
