import type { Params } from '../../shared/protocol/operations.ts';
import type { TrialReport } from '../../shared/protocol/trial-operations.ts';
import { compare } from '../difference/comparison.ts';
import { countDifferences } from '../difference/count-differences.ts';
import { compareSchemas } from '../difference/schema/compare-schemas.ts';
import type { ProofHost } from '../difference/schema/prove-statements.ts';
import type { ComparisonHost, Side } from '../difference/sides.ts';
import type { Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import type { Excesses } from '../process/excesses.ts';
import { HostError } from '../process/host-error.ts';
import type { LockSampler } from '../rehearsal/sample-locks.ts';
import { type WatchedTables, watchUncounted } from '../rehearsal/watched-tables.ts';
import { runScript, type Script } from '../rows/run-script.ts';
import {
  asOwner,
  dropTrialDatabase,
  dropUserMappings,
  makeTrialDatabase,
  type TrialDatabase,
  type TrialDatabaseHost,
} from './trial-database.ts';
import { fittedReport, MESSAGE_MAX, NOTHING_CHANGED, ROOM, triedTables } from './trial-report.ts';
import type { Trials } from './trials.ts';

/** What it takes to try statements. */
export interface TrialHost extends TrialDatabaseHost, ComparisonHost, ProofHost {
  spares: TrialDatabaseHost['spares'];
  lockSampler: LockSampler;
  excesses: Excesses;
  trials: Trials;
}

/** For the rows, and for the schemas. Milliseconds. */
const ROWS_WITHIN_MS = 60_000;
const SCHEMA_WITHIN_MS = 20_000;

const NO_TABLES: WatchedTables = { tables: [], unwatched: 0 };

/**
 * Makes the copy, runs the statements, compares, and drops the copy.
 * @throws HostError SOURCE_BUSY, SOURCE_MISSING, POOLER_UNAVAILABLE, HOST_FULL, PROJECT_BUSY, HOST_BUSY
 */
export async function runTrial(
  host: TrialHost,
  params: Params<'try.run'>,
  script: Script,
): Promise<TrialReport> {
  const began = performance.now();
  const { try_id: id, limits } = params;
  try {
    const trial = await makeTrialDatabase(host, id, params);
    const { before, locks, statements_ms, ...ran } = await runStatements(host, trial, script);
    const changed = ran.outcome === 'succeeded' && !script.isUndone ? trial.before : null;
    const { after, ...compared } = changed
      ? await host.trials.compare(() => compareSides(host, trial.copy, changed))
      : { after: before, ...NOTHING_CHANGED, problems: [] };
    const tables = after
      ? triedTables({ limits, before, after, locks, rows: compared.rows })
      : { tables: [], dangers: [], unwatched_tables: before.unwatched };
    const report = { ...ran, ...compared, ...tables, limits, has_more: false, statements_ms };
    return fittedReport({ ...report, total_ms: Math.round(performance.now() - began) });
  } finally {
    await dropTrialDatabase(host, id);
  }
}

async function runStatements(host: TrialHost, trial: TrialDatabase, script: Script) {
  const { id, copy, project_id, tenant } = trial;
  const { database } = copy;
  let before = NO_TABLES;
  let began = performance.now();
  const begin = async (session: Session) => {
    // A login that only reads takes none of the locks that are sampled, and its snapshot is older than a removal.
    if (script.role !== 'read_only') {
      await dropUserMappings(host.settings, trial, session);
      before = await watchUncounted(session);
    }
    host.lockSampler.watch(
      id,
      database,
      before.tables.map(({ oid }) => oid),
    );
    began = performance.now();
  };
  const end = () => host.lockSampler.sample();
  const branch = { branch_id: id, database, project_id, tenant };
  try {
    const prepare = async () => {
      if (script.role === 'read_only')
        await asOwner(host.settings, trial, (own) => dropUserMappings(host.settings, trial, own));
    };
    const ran = await prepare()
      .then(() => runScript(host, branch, script, { begin, end, room: ROOM.results }))
      .then(
        (results) => ({ outcome: 'succeeded' as const, error: null, results }),
        (error) => ({ ...endedBy(error, host.excesses.take(database)), results: [] }),
      );
    const statements_ms = Math.round(performance.now() - began);
    return { ...ran, before, locks: host.lockSampler.take(id), statements_ms };
  } finally {
    host.lockSampler.take(id);
  }
}

type End = Pick<TrialReport, 'outcome' | 'error'>;

/**
 * The end of statements that PostgreSQL, their limit of time or a watchdog has ended.
 * @param excess in the words of `Excesses`
 * @throws any other failure
 */
function endedBy(error: unknown, excess: string | null): End {
  const end = (
    outcome: End['outcome'],
    message: string,
    { sqlstate, statement }: Partial<HostError> = {},
  ) => ({
    outcome,
    error: {
      message: message.slice(0, MESSAGE_MAX),
      sqlstate: sqlstate ?? null,
      statement: statement ?? null,
    },
  });
  if (excess) return end('failed', `the statements were ended: what they run ${excess}`);
  if (!(error instanceof HostError)) throw error;
  if (error.code === 'STATEMENT_REFUSED') return end('failed', error.message, error);
  if (error.code === 'TIME_LIMIT_REACHED' || error.code === 'HOST_TIMEOUT')
    return end('timed_out', error.message, error);
  throw error;
}

type Compared = Pick<TrialReport, 'rows' | 'schema' | 'problems'> & { after: WatchedTables | null };

/** One part that cannot be compared leaves the others. */
async function compareSides(host: TrialHost, after: Side, before: Side): Promise<Compared> {
  const problems: string[] = [];
  const orProblem = (part: string) => (error: unknown) => {
    if (!(error instanceof HostError)) throw error;
    problems.push(`The ${part} were not compared: ${error.message}`.slice(0, MESSAGE_MAX));
    return null;
  };
  const sides = { before, after };
  const comparing = withLocks(host.sessions, [], (session) =>
    compare(host, session, sides, { within: ROWS_WITHIN_MS }, async (comparison) => ({
      tables: await watchUncounted(comparison.after),
      rows: await countDifferences(comparison),
    })),
  ).catch(orProblem('rows'));
  const schemas = compareSchemas(host, sides, AbortSignal.timeout(SCHEMA_WITHIN_MS)).catch(
    orProblem('schemas'),
  );
  const [rows, schema] = await Promise.all([comparing, schemas]);
  return { after: rows?.tables ?? null, rows: rows?.rows ?? null, schema, problems };
}
