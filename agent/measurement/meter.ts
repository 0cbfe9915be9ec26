import { setTimeout as sleep } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { z } from 'zod';
import type { BranchMeasurement, ProjectMeasurement } from '../../shared/measurement.ts';
import type { Log } from '../link/dispatch.ts';
import { type PooledClient, showClients, showWaits, withAdminConsoles } from '../pooler/admin-console.ts';
import { type OwnSession, openPlatformSession } from '../postgres/connect.ts';
import { countFiles } from '../postgres/file-bytes.ts';
import { TroubleLog } from '../process/log.ts';
import type { AgentSettings } from '../process/settings.ts';
import { addChange, cacheHitRatio, changeSince, metricsOf, Statistics, type Totals } from './counters.ts';
import { CpuAccount, CpuState } from './cpu-account.ts';
import {
  DeadTuples,
  type MeasuredBranch,
  type MeasuredDatabase,
  readDatabaseStatistics,
} from './database-statistics.ts';
import { ClientActivity, Logins } from './logins.ts';
import { readSessionMemory, type ServerSample, sampleServer } from './server-sample.ts';
import { KnownSizes, readSizes, readStreamed } from './sizes.ts';

/** Statement timeout of a measurement; the next measurement tries again. */
const STATEMENT_WITHIN_MS = 10_000;
const POOLER_WITHIN_MS = 5_000;
/** No statement of the agent's own sessions in a tenant's database runs for longer. */
const OWN_STATEMENT_MS_MAX = 10_000;

/** The part of the state that is not per branch, stored in the agent's tables. */
const MeterState = z.object({
  cpu: CpuState,
  /** Statistics of databases without a branch, whose processes end too; by oid. */
  others: z.record(z.string(), Statistics),
  pooled: z.array(z.string()),
});
type MeterState = z.output<typeof MeterState>;

export interface Round {
  measurements: ProjectMeasurement[];
  /** Why the pooler's clients could not be counted; null on success. */
  poolerTrouble: unknown;
  /** Number of databases that were sized. */
  sized: number;
}

/** Seconds that a branch is behind what it follows; null: it follows nothing, or that is not known. */
interface Lags {
  of: (branchId: string) => number | null;
}

/** What the pooler shows; nulls when it is unavailable. */
interface Pooled {
  clients: PooledClient[] | null;
  waits: ReadonlyMap<string, number> | null;
  trouble: unknown;
}

/**
 * Measures the branches of a host, over one session in the agent's database and none in a tenant's. Each
 * measurement is stored in the agent's tables before it is reported, and the next one counts from there.
 */
export class Meter {
  readonly #settings: AgentSettings;
  readonly #stores: boolean;
  readonly #sizes: KnownSizes;
  /** Files of each database, as of its size; by oid. */
  readonly #files = new Map<string, number>();
  #session: OwnSession | null = null;
  /** Observations since the last measurement; null when they have to be continued from the tables. */
  #since: { cpu: CpuAccount; others: MeterState['others']; logins: Logins | null } | null = null;
  /** Oids of the branches' databases at the last measurement, and when that was. */
  #known: { databases: ReadonlySet<string>; at: number } | null = null;
  readonly #activity = new ClientActivity();
  /** Milliseconds of the longest statement since the last measurement, by the database's oid. */
  #longest = new Map<string, number>();
  readonly #deadTuples: DeadTuples;
  readonly #lags: Lags;

  /**
   * @param stores whether measurements are stored, which only the agent's meter does
   * @param sizes those that are known
   * @param deadTuples what the agent's own sessions in the branches have read
   * @param lags of the branches that follow, as the agent has watched them
   */
  constructor(
    settings: AgentSettings,
    {
      stores,
      sizes = new KnownSizes(),
      deadTuples = new DeadTuples(),
      lags = { of: () => null },
    }: { stores: boolean; sizes?: KnownSizes; deadTuples?: DeadTuples; lags?: Lags },
  ) {
    this.#sizes = sizes;
    this.#settings = settings;
    this.#stores = stores;
    this.#deadTuples = deadTuples;
    this.#lags = lags;
  }

  /** Must be called about once a second, so that short sessions are observed. */
  async sample(): Promise<ServerSample> {
    const session = await this.#open();
    const { cpu, logins } = await this.#resume(session);
    await logins?.poll();
    const sample = await sampleServer(session);
    cpu.addSample(sample);
    for (const database of sample.direct.keys()) this.#activity.record(database, sample.at);
    for (const [database, ms] of sample.longest) {
      this.#longest.set(database, Math.max(this.#longest.get(database) ?? 0, ms));
      // A statement outlives the connection of the client that sent it.
      if (ms > OWN_STATEMENT_MS_MAX) this.#activity.record(database, sample.at);
    }
    return sample;
  }

  /** Measures all branches that are in use. */
  async measure(): Promise<Round> {
    const sample = await this.sample();
    try {
      const round = await this.#measure(sample);
      if (!this.#stores) await this.#forget();
      return round;
    } catch (error) {
      await this.#forget();
      throw error;
    }
  }

  async close(): Promise<void> {
    await this.#forget();
    const session = this.#session;
    this.#session = null;
    await session?.end();
  }

  /** The next sample continues from the stored state. */
  async #forget(): Promise<void> {
    const since = this.#since;
    this.#since = null;
    await since?.logins?.close();
  }

  async #open(): Promise<OwnSession> {
    if (this.#session) return this.#session;
    let lost = false;
    const session = await openPlatformSession(this.#settings, () => {
      lost = true;
      this.#session = null;
    });
    await session.query(`SET statement_timeout = ${STATEMENT_WITHIN_MS}; SET jit = off`);
    if (lost) throw new Error('Connection terminated');
    this.#session = session;
    return session;
  }

  async #resume(session: OwnSession) {
    if (this.#since) return this.#since;
    const { rows } = await session.query('SELECT state FROM meter');
    const state = rows[0] ? MeterState.parse(rows[0].state) : null;
    this.#since = {
      cpu: new CpuAccount(state?.cpu ?? null),
      others: state?.others ?? {},
      logins: this.#stores ? new Logins(this.#settings, state?.pooled ?? []) : null,
    };
    return this.#since;
  }

  async #measure(sample: ServerSample): Promise<Round> {
    const session = await this.#open();
    const { cpu, others, logins } = await this.#resume(session);
    const [databases, pooled] = await Promise.all([readDatabaseStatistics(session), this.#pooledClients()]);
    const branches = databases.filter(isBranch);
    const sized = await this.#size(session, branches, sample);
    const streamed = await readStreamed(session, this.#settings.PGDATA_DIR);

    const changes = new Map(
      databases.map(({ statistics, branch }) => {
        const { database } = statistics;
        return [database, changeSince(branch ? branch.seen : (others[database] ?? null), statistics)];
      }),
    );
    const used = cpu.settle(changes);
    const arrived = (pooled.clients && logins?.newPooled(pooled.clients)) ?? new Map<string, number>();
    // Sessions of a new branch so far, such as the proof's, are older than its baseline.
    const previous = this.#known;
    const lasting = branches.filter(({ statistics }) => previous?.databases.has(statistics.database) ?? true);
    logins?.forgetLocalExcept(new Set(lasting.map(({ name }) => name)));
    const browsed = logins?.takeBrowsed();
    const memory = await readSessionMemory(sample.sessions);
    const changed: { branch_id: string; seen: Statistics; totals: Totals }[] = [];
    const projects = new Map<string, BranchMeasurement[]>();
    for (const { name, statistics, branch } of branches) {
      const { database: oid } = statistics;
      const bytes = this.#sizes.bytesOf(oid);
      const change = changes.get(oid);
      if (bytes === undefined || !change) continue;
      const connections = (logins?.direct(name, change.sessions) ?? 0) + (arrived.get(name) ?? 0);
      const clients = pooled.clients?.filter((client) => client.database === name).length ?? 0;
      if (connections + clients > 0 || browsed?.has(name)) this.#activity.record(oid, sample.at);
      // Without the agent's memory of the time before: what a branch reports that clients have used.
      const isUsed =
        previous && logins
          ? this.#activity.isUsedSince(oid, previous.at)
          : connections > 0 || branch.totals.connections > 0;
      const totals = isUsed
        ? addChange(branch.totals, change, { cpu_seconds: used.get(oid) ?? 0, connections })
        : branch.totals;
      if (!isDeepStrictEqual([branch.seen, branch.totals], [statistics, totals])) {
        changed.push({ branch_id: branch.branch_id, seen: statistics, totals });
      }
      const measured = projects.get(branch.project_id) ?? [];
      projects.set(branch.project_id, measured);
      measured.push({
        branch_id: branch.branch_id,
        database_size_bytes: bytes + (streamed.get(oid) ?? 0),
        file_count: this.#files.get(oid) ?? 0,
        active_connections: (sample.direct.get(oid) ?? 0) + clients,
        cache_hit_ratio: isUsed ? cacheHitRatio(change) : null,
        memory_bytes: isUsed && sample.sessions.has(oid) ? (memory.get(oid) ?? null) : 0,
        longest_query_seconds: isUsed ? (this.#longest.get(oid) ?? 0) / 1000 : 0,
        connection_wait_seconds: pooled.waits && (pooled.waits.get(name) ?? 0),
        dead_tuple_ratio: this.#deadTuples.shareOf(branch.branch_id),
        following_lag_seconds: this.#lags.of(branch.branch_id),
        ...metricsOf(totals),
      });
    }
    const databasesNow = new Set(branches.map(({ statistics }) => statistics.database));
    this.#known = { databases: databasesNow, at: sample.at };
    this.#activity.forgetExcept(databasesNow);
    this.#longest = new Map();
    if (this.#stores) await this.#store(session, databases, changed);
    const observed_at = new Date().toISOString();
    return {
      measurements: [...projects].map(([project_id, branches]) => ({ project_id, observed_at, branches })),
      poolerTrouble: pooled.trouble,
      sized,
    };
  }

  /** @returns how many databases were sized */
  async #size(
    session: OwnSession,
    branches: readonly MeasuredDatabase[],
    sample: ServerSample,
  ): Promise<number> {
    const statistics = branches.map((branch) => branch.statistics);
    const due = this.#sizes.due(statistics, sample.inTransaction);
    this.#sizes.record(statistics, due.length > 0 ? await readSizes(session, due) : new Map());
    const present = new Set(statistics.map(({ database }) => database));
    for (const database of this.#files.keys()) if (!present.has(database)) this.#files.delete(database);
    for (const database of due)
      this.#files.set(database, await countFiles(this.#settings.PGDATA_DIR, database));
    return due.length;
  }

  /** When the pooler is unavailable, everything but its clients is measured. */
  async #pooledClients(): Promise<Pooled> {
    try {
      const timeout = sleep(POOLER_WITHIN_MS, undefined, { ref: false }).then(() => {
        throw new Error(`PgBouncer did not respond within ${POOLER_WITHIN_MS / 1000} s`);
      });
      const shown = withAdminConsoles(this.#settings, async (console) => ({
        clients: await showClients(console),
        waits: await showWaits(console),
      }));
      const poolers = await Promise.race([shown, timeout]);
      return {
        clients: poolers.flatMap(({ clients }) => clients),
        waits: longest(poolers.flatMap(({ waits }) => [...waits])),
        trouble: null,
      };
    } catch (trouble) {
      return { clients: null, waits: null, trouble };
    }
  }

  async #store(session: OwnSession, databases: readonly MeasuredDatabase[], branches: readonly object[]) {
    const since = this.#since;
    if (!since?.cpu.state) return;
    since.others = Object.fromEntries(
      databases.flatMap(({ branch, statistics }) => (branch ? [] : [[statistics.database, statistics]])),
    );
    const state: MeterState = {
      cpu: since.cpu.state,
      others: since.others,
      pooled: since.logins?.counted ?? [],
    };
    await session.query(
      `WITH stored AS (INSERT INTO meter (state) VALUES ($2) ON CONFLICT (id) DO UPDATE SET state = excluded.state)
       UPDATE branch_usage AS usage SET seen = now.seen, totals = now.totals
       FROM jsonb_to_recordset($1) AS now (branch_id uuid, seen jsonb, totals jsonb)
       WHERE usage.branch_id = now.branch_id`,
      [JSON.stringify(branches), JSON.stringify(state)],
    );
  }
}

const isBranch = (database: MeasuredDatabase): database is MeasuredDatabase & { branch: MeasuredBranch } =>
  database.branch !== null;

/** The longest wait of each database. */
function longest(waits: readonly (readonly [string, number])[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const [database, seconds] of waits) found.set(database, Math.max(found.get(database) ?? 0, seconds));
  return found;
}

const SAMPLE_EVERY_MS = 1_000;

interface Measuring {
  settings: AgentSettings;
  log: Log;
  report: (measurement: ProjectMeasurement) => void;
  sizes?: KnownSizes;
  deadTuples?: DeadTuples;
  lags?: Lags;
  /** Called after each attempt to measure or to sample. */
  onBegun?: () => void;
  signal: AbortSignal;
}

/**
 * Measures this host every MEASURE_INTERVAL_SECONDS until `signal` aborts. A measurement that takes longer
 * delays the next one. Never throws.
 */
export async function runMeasurementLoop(measuring: Measuring): Promise<void> {
  const { settings, log, report, sizes, deadTuples, lags, onBegun, signal } = measuring;
  const meter = new Meter(settings, {
    stores: true,
    ...(sizes && { sizes }),
    ...(deadTuples && { deadTuples }),
    ...(lags && { lags }),
  });
  const interval = settings.MEASURE_INTERVAL_SECONDS * 1000;
  const reportPostgres = troubleOf('PostgreSQL', log);
  const reportPooler = troubleOf('PgBouncer', log);
  for (let next = performance.now(); !signal.aborted; ) {
    try {
      if (performance.now() < next) {
        await meter.sample();
      } else {
        next = Math.max(next + interval, performance.now());
        const { measurements, poolerTrouble } = await meter.measure();
        reportPooler(poolerTrouble);
        reportPostgres(null);
        for (const measurement of measurements) report(measurement);
      }
    } catch (error) {
      reportPostgres(error);
    }
    onBegun?.();
    const wait = Math.min(SAMPLE_EVERY_MS, next - performance.now());
    await sleep(Math.max(0, wait), undefined, { signal }).catch(() => {});
  }
  onBegun?.();
  await meter.close().catch(() => {});
}

/** Logs why a server cannot be measured, and when it can be again. */
function troubleOf(server: string, log: Log): (trouble: unknown) => void {
  const troubles = new TroubleLog(log);
  return (trouble) => {
    if (trouble !== null) {
      troubles.report('measurement.failed', server, trouble, { server });
    } else if (troubles.clear(server)) {
      log('measurement.resumed', { server });
    }
  };
}
