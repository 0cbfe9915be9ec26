import type { BlockingHost } from '../blocks/enforce-blocks.ts';
import { DATABASES, isWatched, PROCESSES, processKind } from '../postgres/tenant-code.ts';
import type { Excesses } from '../process/excesses.ts';
import { type Log, TroubleLog } from '../process/log.ts';
import { repeat } from '../process/loops.ts';
import type { AgentSettings } from '../process/settings.ts';
import { readRehearsedBytes } from '../rehearsal/stored-rehearsals.ts';
import { SPARE_POOLER_CLIENTS } from '../servers/configuration.ts';
import { AutovacuumWorkers, turnAutovacuumOff } from './autovacuum.ts';
import { GuardBlocks } from './blocks.ts';
import { BranchDirectory } from './branch-directory.ts';
import { Connections, PooledClients } from './connections.ts';
import { CopyGrowth } from './copy-growth.ts';
import { DiskSpace, measureDatabase, readDiskUse } from './disk-space.ts';
import { SessionEnder } from './end-sessions.ts';
import { ProjectFiles } from './files.ts';
import type { Finding, Guard, Observation, TenantSession } from './guard.ts';
import { Locks } from './locks.ts';
import { MultixactMembers } from './multixact-members.ts';
import { NotificationQueue, readQueueHolder } from './notification-queue.ts';
import { OldTransactions } from './old-transactions.ts';
import { PoolerConsoles } from './pooled-clients.ts';
import { TransactionIds } from './transaction-ids.ts';
import { type Reading, type ReadSession, WatchSession } from './watch-session.ts';

interface Watched extends BlockingHost {
  settings: AgentSettings;
  rows: { kept: { has: (pid: number) => boolean } };
  excesses: Excesses;
}

/** A session can take 300,000 locks a second, and fill the queue of NOTIFY at 80 MB a second. */
const POLL_EVERY_MS = 250;

/** A database that is no branch by then, such as the operator's, is forgotten. */
const UNKNOWN_FOR_MS = 60_000;

/** Blocks the database of a session that was ended before it was known whose it is. */
interface LateBlock extends Pick<ReadSession, 'database' | 'begun'> {
  reason: Guard['reason'];
  detail: Finding['detail'];
  /** The time of the reading that found the session. */
  foundAt: number;
}

/** What the watchdogs read besides sessions. */
interface GuardSources {
  directory: BranchDirectory;
  poolers: PoolerConsoles;
  log: Log;
  note: (what: string, trouble: unknown) => void;
}

function guardsOf({ settings, postgres }: Watched, { directory, poolers, log, note }: GuardSources): Guard[] {
  const files = new ProjectFiles(settings.PGDATA_DIR, directory, log, settings.PROJECT_FILES);
  return [
    new Locks(),
    new Connections({ project_id: settings.PROJECT_CONNECTIONS, tenant: settings.TENANT_CONNECTIONS }),
    new PooledClients(
      { limit: settings.POOLER_MAX_CLIENTS, accepted: settings.POOLER_MAX_CLIENTS + SPARE_POOLER_CLIENTS },
      (database) => directory.findByName(database),
      (few) => poolers.readClients(few),
      (trouble) => note('clients of the pooler', trouble),
    ),
    new OldTransactions(settings.TRANSACTION_SECONDS),
    new TransactionIds(settings.TRANSACTION_IDS_PER_SECOND, new MultixactMembers(settings.PGDATA_DIR)),
    new AutovacuumWorkers((branch, relations) => turnAutovacuumOff(settings, branch, relations)),
    new NotificationQueue(settings.PGDATA_DIR, directory, (persists) => readQueueHolder(postgres, persists)),
    files,
    new DiskSpace(
      settings,
      log,
      (sessions) => readDiskUse(postgres, settings.PGDATA_DIR, sessions),
      () => files.takeGrowth(),
    ),
    new CopyGrowth({
      of: (database) => measureDatabase(postgres, database),
      ofRehearsed: () => readRehearsedBytes(postgres),
    }),
  ];
}

const endOf = (kind: TenantSession['kind']) => kind && PROCESSES[kind].end;

/**
 * Whether something would start the process again: a subscription that is followed, or an operation. A finding about one
 * of the processes of an operation ends them all.
 */
function isToStop(
  session: TenantSession,
  found: Finding['sessions'],
  branches: Finding['branches'],
): boolean {
  const { branch, kind } = session;
  if (branch === null || endOf(kind) === 'autovacuum') return false;
  if (DATABASES[branch.kind].excess === 'end')
    return branches.includes(branch) || found.some((one) => one.branch === branch);
  if (endOf(kind) !== 'disable') return false;
  return branches.includes(branch) || found.some(({ pid }) => pid === session.pid);
}

/** Runs all watchdogs on what one session reads, ends the sessions that they find and blocks the branches. */
export class GuardWatch {
  readonly #log: Log;
  readonly #session: WatchSession;
  readonly #directory: BranchDirectory;
  readonly #poolers: PoolerConsoles;
  readonly #guards: readonly Guard[];
  readonly #blocks: GuardBlocks;
  readonly #ender = new SessionEnder();
  readonly #kept: Watched['rows']['kept'];
  readonly #excesses: Excesses;
  /** Blocks that wait until their branches are known, by the session. */
  readonly #late = new Map<string, LateBlock>();
  /** Kinds of process that `tenant-code.ts` does not have, each of which is logged once. */
  readonly #unknown = new Set<string>();
  readonly #troubles: TroubleLog;

  /** @param blocks set by tests only */
  constructor(host: Watched, log: Log, blocks = new GuardBlocks(host, log)) {
    this.#log = log;
    this.#kept = host.rows.kept;
    this.#excesses = host.excesses;
    this.#session = new WatchSession(host.settings);
    this.#directory = new BranchDirectory(host.postgres);
    this.#poolers = new PoolerConsoles(host.settings);
    this.#guards = guardsOf(host, {
      directory: this.#directory,
      poolers: this.#poolers,
      log,
      note: (what, trouble) => this.#note(what, trouble),
    });
    this.#blocks = blocks;
    this.#troubles = new TroubleLog(log);
  }

  /** Watches until `signal` aborts. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    await repeat(() => this.#poll(), POLL_EVERY_MS, signal);
    await this.#blocks.enforce();
    await this.#session.close().catch(() => {});
    await this.#poolers.close();
  }

  async #poll(): Promise<void> {
    await this.#try('sessions', async () => {
      const reading = await this.#session.read();
      await this.#learn(reading.sessions);
      const processes = [...reading.sessions, ...this.#late.values()];
      this.#directory.refresh(processes, (trouble) => this.#note('branches', trouble));
      const server = this.#withBranches(reading);
      this.#blockLate(reading.at);
      // One that waits for the next page of rows must not bring a project above its limit of sessions.
      const tenants = server.sessions.filter(({ pid }) => !this.#kept.has(pid));
      for (const guard of this.#guards) {
        await this.#try(guard.name, async () => {
          const sessions = tenants.filter(({ kind }) => isWatched(kind, guard.name));
          for (const finding of await guard.check({ ...server, sessions }))
            this.#act(guard, finding, server, reading);
        });
      }
      const isBlocked = server.sessions.filter(
        ({ branch, kind }) => branch && this.#blocks.has(branch) && endOf(kind) !== 'autovacuum',
      );
      this.#ender.end(isBlocked, reading);
    });
    void this.#blocks.enforce();
  }

  /** An operation whose process is ended gets the reason only if its database is known. */
  async #learn(sessions: readonly ReadSession[]): Promise<void> {
    const unknown = this.#directory.unknown(sessions);
    if (unknown.length === 0) return;
    await this.#try('names of databases', async () =>
      this.#directory.learn(await this.#session.readNames(unknown)),
    );
  }

  #withBranches({ sessions, workers, ...server }: Reading): Observation {
    const withBranch = <T extends { database: string }>(one: T) => ({
      ...one,
      branch: this.#directory.find(one.database),
    });
    const withKind = (session: ReadSession) => {
      const known = withBranch(session);
      return { ...known, kind: known.branch && this.#kindOf(session, known.branch.database) };
    };
    // Workers in databases that are not known, such as the operator's, are no tenant's.
    const isTenants = ({ branch, backend }: TenantSession & ReadSession) =>
      branch !== null || backend === PROCESSES.client.backend;
    return {
      ...server,
      sessions: sessions.map(withKind).filter(isTenants),
      workers: workers.map(withBranch),
    };
  }

  #kindOf(session: ReadSession, database: string): TenantSession['kind'] {
    const { backend, login, way } = session;
    const kind = processKind({ backend, login, way, database });
    if (!this.#directory.isCertain(session)) return kind;
    const what = `${backend} in ${DATABASES.branch.form.test(database) ? 'a branch' : database}`;
    if (kind === null && !this.#unknown.has(what)) {
      this.#unknown.add(what);
      this.#log('guard.unknown_process', { backend, database });
    }
    return kind;
  }

  #act(
    { name, reason, excess }: Guard,
    { sessions: found, branches, detail, mayReturn, blocksUnknown }: Finding,
    server: Observation,
    reading: Reading,
  ): void {
    const isBlockable = ({ kind }: Finding['branches'][number]) => DATABASES[kind].excess === 'block';
    for (const branch of branches.filter(isBlockable)) {
      this.#blocks.block(branch, reason, detail);
      // A rehearsal works there, and ends with the words of its own bound.
      if (excess) this.#excesses.note(branch.database, excess);
    }
    const unknown = new Set(blocksUnknown && found.flatMap(({ branch, key }) => (branch ? [] : [key])));
    for (const { key, database, begun } of reading.sessions)
      if (unknown.has(key)) this.#late.set(key, { database, begun, reason, detail, foundAt: reading.at });
    const stopped = mayReturn ? [] : server.sessions.filter((session) => isToStop(session, found, branches));
    for (const { branch } of stopped) if (branch) this.#excesses.note(branch.database, excess ?? reason);
    const sessions = [...new Set([...found, ...stopped])];
    const ended = this.#ender.end(sessions, reading);
    const branchIds = [...new Set(sessions.flatMap(({ branch }) => branch?.branch_id ?? []))];
    if (ended > 0)
      this.#log('guard.ended', { guard: name, sessions: ended, branch_ids: branchIds, ...detail });
  }

  /** Blocks the branches that were not known when their sessions were found: new ones, whose databases no reading had. */
  #blockLate(now: number): void {
    for (const [key, { database, reason, detail, foundAt }] of this.#late) {
      const branch = this.#directory.find(database);
      if (branch && DATABASES[branch.kind].excess === 'block') this.#blocks.block(branch, reason, detail);
      if (branch || now - foundAt > UNKNOWN_FOR_MS) this.#late.delete(key);
    }
  }

  /** One watchdog that fails must not stop the others. */
  async #try(what: string, action: () => Promise<void>): Promise<void> {
    await action().then(
      () => this.#note(what, null),
      (error) => this.#note(what, error),
    );
  }

  #note(what: string, trouble: unknown): void {
    if (trouble !== null) this.#troubles.report('guard.failed', what, trouble, { what });
    else if (this.#troubles.clear(what)) this.#log('guard.resumed', { what });
  }
}
