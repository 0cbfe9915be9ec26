import { RuleSync } from '../access/sync-rules.ts';
import { openChangeGate } from '../changes/rehearse.ts';
import { SchemaReadings } from '../changes/schema-readings.ts';
import { probeCloneMethod } from '../cloning/clone-method.ts';
import { CloneTurns } from '../cloning/clone-turns.ts';
import { CopyRoom } from '../cloning/copy-room.ts';
import type { CloneMethod } from '../cloning/create-clone.ts';
import { Comparisons } from '../difference/sides.ts';
import { DeadTuples } from '../measurement/database-statistics.ts';
import { DiskUsage } from '../measurement/disk-usage.ts';
import { KnownSizes } from '../measurement/sizes.ts';
import { Metrics } from '../metrics/metrics.ts';
import { KnownInventory } from '../operations/inventory.ts';
import { CoveredSources } from '../operations/masking.ts';
import { Past } from '../past/past.ts';
import { methodOfPast } from '../past/recovery-hours.ts';
import { openPool, type Pool, type Session } from '../postgres/connect.ts';
import { Excesses } from '../process/excesses.ts';
import type { Log } from '../process/log.ts';
import type { ProjectGate } from '../process/project-gate.ts';
import type { AgentSettings } from '../process/settings.ts';
import { LockSampler } from '../rehearsal/sample-locks.ts';
import { KeptSessions } from '../rows/kept-sessions.ts';
import { PageMarks } from '../rows/pages.ts';
import { RowTurns } from '../rows/row-turns.ts';
import { Spares } from '../snapshots/spares.ts';
import { Standing } from '../snapshots/standing-snapshots.ts';
import { SqlRequests } from '../sql/run-sql.ts';
import { Membership } from '../standby/membership.ts';
import { Copies } from '../transfer/copies.ts';
import { FollowLags } from '../transfer/follow-lags.ts';
import { pauseFollowing } from '../transfer/following.ts';
import { openProbeGate } from '../transfer/probe.ts';
import { Trials } from '../trials/trials.ts';

/** The database host, as every operation gets it. */
export interface Host {
  settings: AgentSettings;
  /** For short statements. No operation holds one of these sessions while it waits. */
  postgres: Pool;
  /** For operations: each holds its locks in one of these sessions. */
  sessions: Pool;
  rules: RuleSync;
  /** State of the table browser that outlives an operation. */
  rows: { turns: RowTurns; scriptTurns: RowTurns; marks: PageMarks; kept: KeptSessions };
  sql: SqlRequests;
  comparisons: Comparisons;
  /** Statements that are tried on a copy. */
  trials: Trials;
  changes: ProjectGate;
  readings: SchemaReadings;
  probes: ProjectGate;
  copies: Copies;
  past: Past;
  /** What the watchdogs have ended, for what has started it. */
  excesses: Excesses;
  /** Of the branches that follow a database elsewhere. */
  lags: FollowLags;
  /** Samples the locks of branches that are being rehearsed. */
  lockSampler: LockSampler;
  /** Of databases, as they were last read. */
  sizes: KnownSizes;
  /** As read in the hourly session of each branch's owner login. */
  deadTuples: DeadTuples;
  cloneMethod: CloneMethod;
  /** As the running agent last measured it. */
  diskUsage: DiskUsage;
  cloneTurns: CloneTurns;
  copyRoom: CopyRoom;
  covered: CoveredSources;
  spares: Spares;
  standing: Standing;
  following: { pause: (session: Session, source: string) => Promise<() => Promise<void>> };
  known: KnownInventory;
  /** Of a host and its standby. */
  member: Membership;
  metrics: Metrics;
  log: Log;
}

/** The sum is within the connections that the configuration reserves for the agent. */
const SHORT_SESSIONS = 4;
const OPERATION_SESSIONS = 14;

/** Opens no session yet. When a server is away, the first operation that needs it fails. */
export async function openHost(settings: AgentSettings, log: Log = () => {}): Promise<Host> {
  const postgres = openPool(settings, SHORT_SESSIONS);
  const sessions = openPool(settings, OPERATION_SESSIONS);
  const cloneMethod = await probeCloneMethod(settings.PGDATA_DIR);
  const rules = new RuleSync(settings, postgres);
  return {
    settings,
    postgres,
    sessions,
    rules,
    member: new Membership({ settings, postgres, rules, log }),
    rows: {
      turns: new RowTurns(),
      scriptTurns: RowTurns.ofScripts(),
      marks: new PageMarks(),
      kept: new KeptSessions(),
    },
    sql: new SqlRequests(),
    comparisons: new Comparisons(),
    trials: new Trials(sessions),
    changes: openChangeGate(),
    readings: new SchemaReadings(),
    probes: openProbeGate(),
    copies: new Copies(),
    past: new Past({ settings, postgres, cloneMethod: await methodOfPast(settings, cloneMethod), log }),
    excesses: new Excesses(),
    lags: new FollowLags(),
    lockSampler: new LockSampler(postgres, log),
    sizes: new KnownSizes(),
    deadTuples: new DeadTuples(),
    log,
    diskUsage: new DiskUsage({ settings, postgres, cloneMethod, log }),
    cloneTurns: new CloneTurns(cloneMethod),
    copyRoom: new CopyRoom(settings),
    covered: new CoveredSources(),
    spares: new Spares({ log }),
    standing: new Standing(),
    following: {
      pause: (session, source) => pauseFollowing({ settings, postgres, sessions, log }, session, source),
    },
    known: new KnownInventory(settings.MIN_FREE_DISK_MB * 2 ** 20),
    metrics: new Metrics(),
    cloneMethod,
  };
}

export async function closeHost({ postgres, sessions, rows, lags, sql }: Host): Promise<void> {
  lags.close();
  sql.replies.close();
  await Promise.all([postgres.end(), sessions.end(), rows.kept.close()]);
}
