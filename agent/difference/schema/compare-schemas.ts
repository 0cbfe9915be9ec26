import { Worker } from 'node:worker_threads';
import { HostError } from '../../servers/host-error.ts';
import { COMPARISON, type FromThread, type Side, type ToThread } from './comparison-messages.ts';
import type { CatalogQuery, SchemaDifference } from './schema-record.ts';

/** A comparison takes no longer. Milliseconds. */
const WITHIN_MS = 20_000;
/** Of the thread; a schema that needs more is refused. */
const HEAP_MB = 512;
/** At once on a host: each takes a processor and a heap. */
const THREADS = 2;

/** Of each side: tables, indexes, sequences and views with their columns, functions, types, constraints. */
const OBJECTS_MAX = 50_000;
const CATALOGS = ['pg_class', 'pg_attribute', 'pg_proc', 'pg_type', 'pg_constraint', 'pg_trigger', 'pg_policy'];
/** What a message of the link has room for, beside the rows. */
const CHANGES_MAX = 1_000;
const STATEMENT_CHARACTERS_MAX = 262_144;
/** SQLSTATE `program_limit_exceeded`. */
const PROGRAM_LIMIT = '54000';

/** The program of the agent: one file when it is installed, its sources otherwise. */
const PROGRAM = import.meta.url.endsWith('.ts') ? new URL('../../main.ts', import.meta.url) : import.meta.url;

let running = 0;

/**
 * What distinguishes the schema of `here` from that of `there`, with the statements that bring `there` here. Runs in a
 * thread that is ended after a time, because the time depends on schemas that tenants made. The sessions stay in the
 * agent: each query function belongs to one transaction of the read-only login, which has one snapshot.
 * @throws HostError HOST_BUSY, HOST_TIMEOUT, STATEMENT_REFUSED for a schema that is too large; what a query throws
 */
export async function compareSchemas(here: CatalogQuery, there: CatalogQuery): Promise<SchemaDifference> {
  if (running === THREADS) throw new HostError('HOST_BUSY', 'too many schemas are being compared');
  running += 1;
  try {
    const sizes = await Promise.all([countObjects(here), countObjects(there)]);
    if (Math.max(...sizes) > OBJECTS_MAX) throw tooLarge();
    return bounded(await inThread({ here, there }));
  } finally {
    running -= 1;
  }
}

async function countObjects(query: CatalogQuery): Promise<number> {
  // Stops counting at the limit, so that a huge catalog costs no more.
  const counts = CATALOGS.map(
    (catalog) =>
      `(SELECT count(*) FROM (SELECT FROM pg_catalog.${catalog} OFFSET 0 LIMIT ${OBJECTS_MAX + 1}) AS counted)`,
  );
  const { rows } = await query(`SELECT (${counts.join(' + ')})::float8 AS objects`);
  return Number(rows[0]?.objects);
}

const tooLarge = () =>
  new HostError('STATEMENT_REFUSED', 'the schema has too many objects to compare', PROGRAM_LIMIT);

async function inThread(sides: Record<Side, CatalogQuery>): Promise<SchemaDifference> {
  const thread = new Worker(PROGRAM, {
    workerData: COMPARISON,
    resourceLimits: { maxOldGenerationSizeMb: HEAP_MB },
  });
  const { promise, resolve, reject } = Promise.withResolvers<SchemaDifference>();
  const timeout = setTimeout(
    () => reject(new HostError('HOST_TIMEOUT', 'the comparison of the schemas took too long')),
    WITHIN_MS,
  );
  const answer = async (query: number, side: Side, text: string, values: unknown[] | undefined) => {
    const { rows } = await sides[side](text, values);
    thread.postMessage({ query, rows } satisfies ToThread);
  };
  thread.on('message', (message: FromThread) => {
    if ('difference' in message) resolve(message.difference);
    else answer(message.query, message.side, message.text, message.values).catch(reject);
  });
  thread.on('error', (error: NodeJS.ErrnoException) =>
    reject(error.code === 'ERR_WORKER_OUT_OF_MEMORY' ? tooLarge() : error),
  );
  try {
    return await promise;
  } finally {
    clearTimeout(timeout);
    await thread.terminate();
  }
}

/** A part of a plan would look like a plan, so one that is too long is not returned at all. */
function bounded({ changes, statements, not_modelled }: SchemaDifference): SchemaDifference {
  const characters = statements.reduce((sum, { length }) => sum + length, 0);
  const isLong = characters > STATEMENT_CHARACTERS_MAX;
  const unlisted = changes.length - CHANGES_MAX;
  return {
    changes: changes.slice(0, CHANGES_MAX),
    statements: isLong ? [] : statements,
    not_modelled: [
      ...(isLong ? ['The statements are not listed, because they are too long together.'] : []),
      ...(unlisted > 0 ? [`${unlisted} more changes are not listed.`] : []),
      ...not_modelled.slice(0, CHANGES_MAX),
    ],
  };
}
