import { setTimeout as sleep } from 'node:timers/promises';
import { groupName } from '../../shared/branch/login.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import { leftAloneOf, type SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import { type CloneHost, createClone } from '../cloning/create-clone.ts';
import { dumpAsLogin } from '../difference/schema/comparison-login.ts';
import { readFacts } from '../difference/schema/schema-facts.ts';
import { planRestore, type RestorePlan, restoreEntries } from '../dump/restore.ts';
import { readTenant } from '../postgres/branches.ts';
import { exportSnapshot, type Pool, type Session } from '../postgres/connect.ts';
import { databasePrint } from '../postgres/database-print.ts';
import { releaseLock, takeLock, withLocks } from '../postgres/locks.ts';
import { asHostError, sqlState } from '../postgres/postgres-failure.ts';
import type { Excesses } from '../process/excesses.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import { openLoadSession } from '../rows/branch-session.ts';
import { freeBytes } from '../volumes/volumes.ts';
import type { Copies } from './copies.ts';
import { copyPrivileges } from './copy-privileges.ts';
import { CopyPhases, CopyProgress } from './copy-progress.ts';
import {
  atSource,
  type CopiedTable,
  compareSample,
  copyRows,
  forEach,
  isOfSource,
  listAnalyzed,
  listCompared,
  listTables,
  readSequences,
  refused,
  refusedRows,
  refusedSchema,
  setSequences,
  tableName,
  type Worker,
} from './copy-rows.ts';
import { limitFinding } from './follow-places.ts';
import { type CopiedSchema, copiedSchema, type Named, readLeft } from './followed-schema.ts';
import type { LeftAlone } from './left-alone.ts';
import {
  closeLoad,
  endLoadSessions,
  finishedLoad,
  loadDatabaseName,
  loadLoginName,
  openToLoad,
  removeLoad,
} from './load-database.ts';
import { type Examined, examineSource, isEmptyDatabase, NOT_EMPTY, type ProbeHost } from './probe.ts';
import { finding, Refused, type Source, short } from './source-address.ts';
import { policyOf } from './source-policy.ts';
import { dumpWanted, leftOutFindings, readSchemaFacts } from './source-schema.ts';
import { findingOf, inSource, openReplicationSession, openSnapshotSession } from './source-session.ts';
import { dropAtSource, dropSlot, makePublications, makeSlot, type SlotNames } from './source-slot.ts';

/** Requirements for the copy of a source. */
export interface CopyHost extends ProbeHost, CloneHost {
  sessions: Pool;
  cloneTurns: CloneTurns;
  copies: Copies;
  excesses: Excesses;
  log: Log;
}

type Copy = MethodResult<'transfer.copy'>;
type Copied = NonNullable<Copy['copied']>;
type CopyParams = Params<'transfer.copy'>;

export const cancelCopy = async (
  { copies }: Pick<CopyHost, 'copies'>,
  { job_id }: Params<'transfer.cancel'>,
): Promise<MethodResult<'transfer.cancel'>> => ({ stopped: copies.stop(job_id) });

const MB = 2 ** 20;

/**
 * Copies a database elsewhere into a clone of an empty branch: its schema, the rows of one snapshot, and the
 * values of its sequences. Both sides are compared at the end. A copy that fails removes the clone, and one
 * that was killed is removed by the next call, which begins again.
 * @throws HostError PROJECT_BUSY, HOST_BUSY, HOST_FULL, SOURCE_MISSING, SOURCE_BUSY, POSTGRES_UNAVAILABLE. What
 *   is wrong with the source, or with its schema and rows here, is a finding
 */
export const copySource = (host: CopyHost, params: CopyParams, onProgress?: OnProgress): Promise<Copy> =>
  host.copies.run(params, (stop) =>
    withLocks(
      host.sessions,
      [`clone:${params.branch_id}`, `clone:${params.job_id}`],
      async (session): Promise<Copy> => {
        const finished = await finishedLoad(session, params);
        if (finished !== undefined) return { copied: finished as Copied, findings: [] };
        await removeLoad(session, params);
        const copied = await copyAgain(host, session, params, stop, onProgress);
        if (!copied.copied) await removeLoad(session, params);
        return copied;
      },
    ),
  );

const isError = ({ severity }: SourceFinding) => severity === 'error';

async function copyAgain(
  host: CopyHost,
  session: Session,
  params: CopyParams,
  stop: AbortController,
  onProgress: OnProgress | undefined,
): Promise<Copy> {
  const { project_id, branch_id, database, room_bytes, busy_wait } = params;
  const use = params.follow ? 'follow' : 'import';
  const phases = new CopyPhases();
  const publication = params.follow?.publication ?? null;
  const { of_host } = params;
  const wanted = {
    ...leftAloneOf(params),
    project_id,
    use,
    tables: params.tables,
    publication,
    room_bytes,
    of_host,
  } as const;
  const examined = await examineSource(host, params.source_url, wanted);
  if (!examined.ok) return { copied: null, findings: [examined.failure] };
  const { probe } = examined.value;
  if (probe.findings.some(isError)) return { copied: null, findings: probe.findings };
  const overLimit = params.follow
    ? await limitFinding(host, project_id, policyOf(params), params.job_id)
    : [];
  if (overLimit.length > 0) return { copied: null, findings: overLimit };
  phases.end('check');
  const { rows } = await session.query(
    'SELECT FROM branch WHERE project_id = $1 AND branch_id = $2 AND database = $3',
    [project_id, branch_id, database],
  );
  if (rows.length === 0) throw new HostError('SOURCE_MISSING', `the project has no branch ${database}`);
  const endTurn = await host.cloneTurns.begin(database, await readTenant(host.postgres, project_id));
  try {
    await takeLock(session, `source:${database}`);
    await createClone(host, session, { name: loadDatabaseName(params.job_id), source: database, busy_wait });
    await releaseLock(session, `source:${database}`);
  } finally {
    endTurn();
  }
  try {
    const loaded = await fillLoad(host, session, params, examined.value, stop, phases, onProgress);
    if ('refused' in loaded) return { copied: null, findings: [loaded.refused] };
    if (params.follow) await storeFollowing(session, params, examined.value, loaded);
    await closeLoad(session, params, loaded.copied);
    phases.end('close');
    host.log('copy.ended', { job_id: params.job_id, ms: phases.ms });
    return { copied: loaded.copied, findings: [...probe.findings, ...loaded.warnings] };
  } catch (error) {
    await removeLoad(session, params);
    throw error;
  }
}

/** Opens the database that a copy fills, which is there and empty, and fills it. */
export async function fillLoad(
  host: CopyHost,
  session: Session,
  params: CopyParams,
  examined: Examined,
  stop: AbortController,
  phases: CopyPhases,
  onProgress?: OnProgress,
): Promise<Loaded> {
  const { total_bytes } = examined.probe.source;
  // The sort of an index takes no more than its table has with indexes.
  await openToLoad(session, host.settings, params, Math.ceil(total_bytes / MB));
  phases.end('clone');
  const load = new Load(host, params, examined, stop, phases, onProgress);
  return host.copyRoom.during(total_bytes, () => load.run());
}

/** Stores the state from which `follow.start` continues. */
const storeFollowing = (
  session: Session,
  params: CopyParams,
  examined: { tables: [schema: string, name: string][]; leftAlone: LeftAlone },
  { known, forced, print }: LeftOut & { print: string | null },
) => {
  const { branch_id, project_id, database, follow, tables } = params;
  const { extensions } = examined.leftAlone;
  const leftAlone = { ...leftAloneOf(params), ...(extensions.length > 0 && { extensions }) };
  return session.query(
    `INSERT INTO following (branch_id, project_id, database, slot, publication, tables, left_alone, known, forced, print)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     ON CONFLICT (branch_id) DO UPDATE SET (slot, publication, tables, left_alone, known, forced, print, problem, cutover, refused_at, outcome, additions, positions) =
       (excluded.slot, excluded.publication, excluded.tables, excluded.left_alone, excluded.known, excluded.forced, excluded.print, NULL, NULL, NULL, NULL, '[]', '[]')`,
    [
      ...[branch_id, project_id, database, follow?.slot, follow?.publication ?? null],
      ...[tables === null ? null : JSON.stringify(examined.tables), JSON.stringify(leftAlone)],
      ...[JSON.stringify(known), JSON.stringify(forced), print],
    ],
  );
};

/** Shares of the progress. */
const ROWS_FROM = 0.05;
const ROWS_TO = 0.8;
const INDEXES_TO = 0.9;

/** A schema is read from a server far away. Milliseconds. */
const SCHEMA_WITHIN_MS = 300_000;
/** The next piece of rows, and all answers about the catalog. Milliseconds. */
const PIECE_WITHIN_MS = 900_000;
/** A sample of one table is read, and found here. Milliseconds. */
const SAMPLE_WITHIN_MS = 6 * 3_600_000;
/** The slot of a killed copy is dropped, and the publication is made. Milliseconds. */
const PUBLISH_WITHIN_MS = 30_000;
const WATCH_EVERY_MS = 1_000;
/** Everything in a dump names its schema. */
const NO_PATH = '';
/** SQLSTATE of a check, and of what its function may raise. */
const CHECKED = new Set(['23514', 'P0001']);

/** Differences of a copy that is to follow from its source, by the names of `Followed`. */
interface LeftOut {
  known: readonly string[];
  forced: readonly Named[];
}

type Loaded =
  | (LeftOut & {
      copied: Copied;
      warnings: SourceFinding[];
      /** Print of the schema of another host that is followed. */
      print: string | null;
    })
  | { refused: SourceFinding };

/** One copy into a database that is open to its login alone. */
class Load {
  readonly #host: CopyHost;
  readonly #params: CopyParams;
  readonly #source: Source;
  readonly #examined: Examined;
  readonly #stop: AbortController;
  readonly #phases: CopyPhases;
  readonly #onProgress: OnProgress | undefined;
  readonly #ends: (() => unknown)[] = [];
  /** When the source is not waited for any more, in milliseconds of a monotonic clock. */
  #deadline = Number.POSITIVE_INFINITY;

  constructor(
    host: CopyHost,
    params: CopyParams,
    examined: Examined,
    stop: AbortController,
    phases: CopyPhases,
    onProgress: OnProgress | undefined,
  ) {
    this.#host = host;
    this.#params = params;
    this.#source = examined.source;
    this.#examined = examined;
    this.#stop = stop;
    this.#phases = phases;
    this.#onProgress = onProgress;
  }

  /** @throws HostError, if this server is the reason */
  async run(): Promise<Loaded> {
    const { signal } = this.#stop;
    const over = new AbortController();
    const onStop = () => void this.#endAll().catch(() => {});
    signal.addEventListener('abort', onStop);
    const watching = this.#watch(over.signal);
    let isDone = false;
    try {
      const loaded = await this.#copy();
      isDone = true;
      return loaded;
    } catch (error) {
      if (signal.aborted) return { refused: signal.reason as SourceFinding };
      return { refused: this.#refusalOf(error) };
    } finally {
      over.abort();
      signal.removeEventListener('abort', onStop);
      await watching;
      await this.#endAll();
      if (!isDone) await this.#dropSlot();
    }
  }

  /** Nothing is left at the source of a copy that failed. */
  async #dropSlot(): Promise<void> {
    const { follow, job_id } = this.#params;
    if (!follow) return;
    const dropped = await dropAtSource(this.#host.settings, this.#source, follow);
    if (!dropped.ok) this.#host.log('follow.left_at_source', { job_id, reason: dropped.failure.message });
  }

  /**
   * Makes what the branch will follow, after what a killed copy has left. The rows of the slot's snapshot are copied,
   * and its first change is the next one, so none is lost or applied twice.
   * @returns the snapshot, and the print of the schema of another host: before it is read, so that a later change is found
   */
  async #makeSlot({ slot, publication }: SlotNames): Promise<{ snapshot: string; print: string | null }> {
    const { mustBeComplete } = policyOf(this.#params);
    const bounds = { within: PUBLISH_WITHIN_MS, mode: 'change' } as const;
    const made = await inSource(this.#host.settings, this.#source, bounds, async ({ session }) => {
      await dropSlot(session, { slot, publication });
      // Changes are decoded with the catalog of their time, so the publication has to be older than the slot.
      if (publication === null) await makePublications(session, slot, this.#examined.published);
      return mustBeComplete ? databasePrint(session, 'schema') : null;
    });
    if (!made.ok) throw new Refused(made.failure);
    const opened = await atSource(openReplicationSession(this.#host.settings, this.#source));
    this.#ends.push(opened.end);
    return { snapshot: await atSource(makeSlot(opened.session, slot)), print: made.value };
  }

  /** @throws HostError */
  #refusalOf(error: unknown): SourceFinding {
    if (error instanceof Refused) return error.finding;
    const excess = this.#host.excesses.take(loadDatabaseName(this.#params.job_id));
    if (excess) return finding('schema', `What runs here in the schema of the source ${excess}.`);
    if (isOfSource(error)) return findingOf(error);
    const failure = asHostError(error);
    if (failure instanceof HostError) throw failure;
    const sqlstate = sqlState(error);
    this.#host.log('copy.failed', {
      job_id: this.#params.job_id,
      ...(sqlstate && { sqlstate }),
      // The message of PostgreSQL can quote a value.
      ...(!sqlstate && { reason: error instanceof Error ? (error.stack ?? error.message) : String(error) }),
    });
    return finding('schema', `The copy failed${sqlstate ? ` with SQLSTATE ${sqlstate}` : ''}.`);
  }

  /** Ends what copies: in the middle of a statement, only the server can. */
  async #endAll(): Promise<void> {
    await endLoadSessions(this.#host.postgres, this.#params);
    for (const end of this.#ends.splice(0)) await end();
  }

  /** Stops a copy that takes more room than there is, or waits for a source that sends nothing. */
  async #watch(over: AbortSignal): Promise<void> {
    const { settings, postgres } = this.#host;
    const { room_bytes, job_id } = this.#params;
    while (!over.aborted) {
      await sleep(WATCH_EVERY_MS, undefined, { signal: over }).catch(() => {});
      if (over.aborted) return;
      try {
        const { rows } = await postgres.query<{ bytes: number | null }>(
          'SELECT pg_database_size(oid)::float8 AS bytes FROM pg_database WHERE datname = $1',
          [loadDatabaseName(job_id)],
        );
        const free = await freeBytes(settings.PGDATA_DIR);
        if ((rows[0]?.bytes ?? 0) > room_bytes) this.#stop.abort(OVER_QUOTA);
        else if (free < settings.MIN_FREE_DISK_MB * MB) this.#stop.abort(DISK_FULL);
        else if (performance.now() > this.#deadline) this.#stop.abort(STALLED);
      } catch {
        // The server is away, which ends the copy too.
      }
    }
  }

  /** A source could otherwise hold the copy's place on the host for ever. @param ms null: it is not waited for */
  #awaitSource(ms: number | null): void {
    this.#deadline = ms === null ? Number.POSITIVE_INFINITY : performance.now() + ms;
  }

  async #openSource(snapshot: string | null, reads: 'catalog' | 'rows'): Promise<Session> {
    this.#stop.signal.throwIfAborted();
    const opened = await atSource(openSnapshotSession(this.#host.settings, this.#source, snapshot, reads));
    this.#ends.push(opened.end);
    this.#stop.signal.throwIfAborted();
    return opened.session;
  }

  async #openTarget(): Promise<Session> {
    const { job_id, project_id } = this.#params;
    this.#stop.signal.throwIfAborted();
    const session = await openLoadSession(this.#host, {
      user: loadLoginName(job_id),
      database: loadDatabaseName(job_id),
      project_id,
    });
    this.#ends.push(() => session.end().catch(() => {}));
    this.#stop.signal.throwIfAborted();
    return session;
  }

  async #copy(): Promise<Loaded> {
    this.#awaitSource(PIECE_WITHIN_MS);
    const { follow, project_id } = this.#params;
    const { mustBeComplete, sameRoles } = policyOf(this.#params);
    const target = await this.#openTarget();
    if (!(await isEmptyDatabase(target))) throw new Refused(NOT_EMPTY);
    const ofSlot = follow ? await this.#makeSlot(follow) : null;
    const source = await this.#openSource(ofSlot?.snapshot ?? null, 'catalog');
    const snapshot = ofSlot?.snapshot ?? (await atSource(exportSnapshot(source)));
    const facts = await readSchemaFacts(source);
    const { archive, choice } = await dumpWanted(this.#host, this.#source, facts, {
      project_id,
      snapshot,
      tables: this.#params.tables === null ? null : this.#examined.tables,
      leftAlone: this.#examined.leftAlone,
      sameRoles,
      within: SCHEMA_WITHIN_MS,
      signal: this.#stop.signal,
    });
    const plan = planRestore(archive, choice);
    const [missing] = mustBeComplete ? plan.leftOut : [];
    if (missing !== undefined)
      throw new Refused(
        finding(
          'schema',
          `${short(missing)} cannot be copied to another host. Drop it, or keep the project where it is.`,
        ),
      );
    const tables = await listTables(
      source,
      follow
        ? this.#examined.published.map(({ schema, name }) => [schema, name] as const)
        : this.#examined.tables,
    );
    this.#awaitSource(null);
    await this.#makeEntries(target, plan.first, NO_PATH);
    this.#phases.end('schema');
    const progress = new CopyProgress(tables, partOf(this.#onProgress, ROWS_FROM, ROWS_TO));
    const workers = await this.#openWorkers(snapshot, tables.length);
    this.#awaitSource(PIECE_WITHIN_MS);
    await this.#copyTables(workers, tables, facts.searchPath, progress);
    this.#awaitSource(null);
    this.#phases.end('rows');
    this.#awaitSource(PIECE_WITHIN_MS);
    const sequences = await readSequences((workers[0] ?? { source }).source);
    this.#awaitSource(null);
    await setSequences(target, sequences);
    const { searchPath } = facts;
    await forEach(plan.indexes, workers, (worker, entries) =>
      this.#makeEntries(worker.target, entries, searchPath),
    );
    await this.#makeEntries(target, plan.last, searchPath);
    this.#phases.end('indexes');
    const compared = await this.#compareTables(workers, progress);
    this.#phases.end('comparison');
    await this.#makeEntries(target, plan.policies, searchPath);
    if (follow) await letPoliciesReplicate(target);
    const populated = new Set(facts.populated.map((name) => JSON.stringify(name)));
    for (const { schema, tag } of plan.views)
      if (populated.has(JSON.stringify([schema, tag])))
        await refreshView(target, { schema: schema ?? '', name: tag });
    if (sameRoles) await copyPrivileges(source, target, groupName(project_id, 'owner'));
    await forEach(await listAnalyzed(target), workers, (worker, name) =>
      worker.target.query(`ANALYZE ONLY ${name}`),
    );
    this.#phases.end('statistics');
    const leftOut = follow
      ? await this.#leftOut(copiedSchema(archive, choice), source, target)
      : { known: [], forced: [] };
    const { rows: sizes } = await target.query<{ bytes: string }>(
      'SELECT pg_database_size(current_database()) AS bytes',
    );
    return {
      copied: {
        ...listCompared(compared),
        size_bytes: Number(sizes[0]?.bytes),
      },
      warnings: leftOutFindings(plan, facts),
      ...leftOut,
      print: ofSlot?.print ?? null,
    };
  }

  /** Returns the differences of a schema that was just made, such as the text of an expression. They are not reported later. */
  async #leftOut({ entries, forced }: CopiedSchema, source: Session, target: Session): Promise<LeftOut> {
    const { job_id, project_id } = this.#params;
    const login = { name: loadLoginName(job_id), project_id, settings: this.#host.settings };
    const dumped = await dumpAsLogin(login, loadDatabaseName(job_id), {
      within: SCHEMA_WITHIN_MS,
      signal: this.#stop.signal,
    });
    const here = copiedSchema(dumped, { tables: null, policies: [] }).entries;
    const known = await readLeft(
      { entries: here, facts: (oids) => readFacts(target, oids) },
      { entries, facts: (oids) => atSource(readFacts(source, oids)) },
    );
    return { known, forced };
  }

  async #makeEntries(target: Session, entries: RestorePlan['first'], searchPath: string): Promise<void> {
    this.#stop.signal.throwIfAborted();
    const [refused] = await restoreEntries(target, entries, { searchPath });
    if (refused) throw refusedSchema(refused);
  }

  /**
   * The largest first. A check can need the rows of another table, which its function reads: what is refused is tried
   * again as long as others are accepted.
   */
  async #copyTables(
    workers: readonly Worker[],
    tables: readonly CopiedTable[],
    searchPath: string,
    progress: CopyProgress,
  ): Promise<void> {
    for (let waiting = tables; waiting.length > 0; ) {
      const refused: { table: CopiedTable; error: unknown }[] = [];
      await forEach(waiting, workers, async (worker, table) => {
        try {
          await this.#copyTable(worker, table, searchPath, progress);
        } catch (error) {
          if (!CHECKED.has(sqlState(error) ?? '') || isOfSource(error)) throw refusedRows(table, error);
          refused.push({ table, error });
        }
      });
      const [first] = refused;
      if (first && refused.length === waiting.length) throw refusedRows(first.table, first.error);
      waiting = refused.map(({ table }) => table);
    }
  }

  async #openWorkers(snapshot: string, tables: number): Promise<Worker[]> {
    const count = Math.max(1, Math.min(this.#params.jobs, tables));
    const ends = await Promise.allSettled(
      Array.from({ length: count }, async () => {
        const [source, target] = await Promise.all([this.#openSource(snapshot, 'rows'), this.#openTarget()]);
        return { source, target };
      }),
    );
    return ends.map((end) => {
      if (end.status === 'rejected') throw end.reason;
      return end.value;
    });
  }

  async #copyTable(
    { source, target }: Worker,
    table: CopiedTable,
    searchPath: string,
    progress: CopyProgress,
  ): Promise<void> {
    progress.begin(table);
    const rows = await copyRows(source, target, table, searchPath, (bytes) => {
      this.#awaitSource(PIECE_WITHIN_MS);
      progress.add(table, bytes);
    });
    progress.end(table, rows);
  }

  /**
   * `COPY` has counted the rows of both sides in their snapshots.
   * @throws Refused for a table whose rows differ
   */
  async #compareTables(workers: readonly Worker[], progress: CopyProgress): Promise<Copied['tables']> {
    const onProgress = partOf(this.#onProgress, INDEXES_TO, 1);
    const compared = new Map<CopiedTable, number>();
    await forEach(progress.tables, workers, async ({ source, target }, table) => {
      this.#awaitSource(SAMPLE_WITHIN_MS);
      const { sampled, isEqual } = await compareSample(source, target, table, progress.rowsOf(table));
      if (!isEqual)
        throw new Refused(
          finding('rows', `The copied rows of ${short(tableName(table))} differ from the source.`, {
            object: short(tableName(table)),
          }),
        );
      compared.set(table, sampled);
      onProgress?.(compared.size / progress.tables.length, () => ({ tables: progress.list() }));
    });
    this.#awaitSource(null);
    return progress.tables.map((table) => ({
      schema: table.schema,
      table: table.name,
      rows: progress.rowsOf(table),
      compared: compared.get(table) ?? 0,
    }));
  }
}

const OVER_QUOTA = finding(
  'size',
  'The copy takes more than the storage quota has left. Raise the quota, or choose tables.',
  { path: 'tables' },
);
const DISK_FULL = finding('size', 'The disk of the database host is nearly full. Contact its operator.', {
  path: 'tables',
});
const STALLED = finding('connection', 'The source has not answered in time.');

/** @throws Refused */
async function refreshView(target: Session, view: { schema: string; name: string }): Promise<void> {
  const name = tableName(view);
  await target.query(`REFRESH MATERIALIZED VIEW ${name}`).catch((error) => {
    throw refused(error, (reason) =>
      finding('schema', `PostgreSQL cannot refresh the materialized view ${short(name)} here: ${reason}.`, {
        object: short(name),
      }),
    );
  });
}

/** PostgreSQL replicates into no table whose policies apply to its owner, so they do when following ends. */
async function letPoliciesReplicate(target: Session): Promise<void> {
  const { rows } = await target.query<{ schema: string; name: string }>(
    `SELECT n.nspname AS schema, c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.relforcerowsecurity AND c.relrowsecurity`,
  );
  for (const table of rows) await target.query(`ALTER TABLE ${tableName(table)} NO FORCE ROW LEVEL SECURITY`);
}
