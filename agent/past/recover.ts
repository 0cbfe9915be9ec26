import { mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { groupName } from '../../shared/branch/login.ts';
import { type Moment, momentOf } from '../../shared/moment.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { SourceFinding } from '../../shared/protocol/transfer-operations.ts';
import { createClone } from '../cloning/create-clone.ts';
import { readTenant } from '../postgres/branches.ts';
import { identifier, literal, PLATFORM_ROLE, type Session } from '../postgres/connect.ts';
import { withLocks } from '../postgres/locks.ts';
import { SECOND_SERVER } from '../postgres/tenant-code.ts';
import { furnishDatabase } from '../privileges/new-database.ts';
import { HostError } from '../process/host-error.ts';
import { pollUntil } from '../process/loops.ts';
import { type OnProgress, partOf } from '../process/progress.ts';
import { readSnapshotSize } from '../snapshots/snapshot-databases.ts';
import { CopyPhases } from '../transfer/copy-progress.ts';
import { type CopyHost, fillLoad } from '../transfer/copy-source.ts';
import {
  closeLoadAsSnapshot,
  loadDatabaseName,
  loadLoginName,
  removeLoad,
} from '../transfer/load-database.ts';
import { examineAt } from '../transfer/probe.ts';
import { finding, type Source } from '../transfer/source-address.ts';
import { firstArchivedSince, isArchived } from './archive.ts';
import { type BaseCopy, dataOf, removeFolder } from './base-copies.ts';
import { CLOCK } from './clock.ts';
import { type PastFolders, pastFolders } from './folders.ts';
import { copyTree, EMPTY } from './make-base-copy.ts';
import type { Past } from './past.ts';
import { ReplayMeter } from './replay-meter.ts';
import { SecondServer } from './second-server.ts';
import { isSegment, segmentNumber } from './segments.ts';

/**
 * Recovers the database of a branch as of a time, as a snapshot. A second PostgreSQL replays the WAL over a copy of all
 * databases. Before anything of the tenant runs there, the copy has the one database only, and nobody's passwords.
 */

export interface RecoveryHost extends CopyHost {
  past: Past;
}

type RecoverParams = Params<'past.recover'>;
type Recovered = MethodResult<'past.recover'>;
/** The subject of a recovery, and its end: `position` of the WAL rather than the time, if there is one. */
type Target = Omit<RecoverParams, 'snapshot_id'> & { position?: string };

/** A time of a commit in PostgreSQL's form: `2026-11-23 10:15:00.123456+00`. */
const COMMITTED = /(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?)\+00$/;
const committedAt = (line: string): Moment | null => {
  const [, day, time] = COMMITTED.exec(line) ?? [];
  return day === undefined ? null : momentOf(`${day}T${time}Z`);
};

interface Watched {
  onProgress?: OnProgress | undefined;
  reached?: (step: RecoveryStep, folder: string) => Promise<void>;
  /** Ends the recovery before its time. */
  signal?: AbortSignal;
}

/** Steps of a recovery, for tests that look at the copy or end the agent there. */
export const RECOVERY_STEPS = [
  'archived',
  'copied',
  'replayed',
  'wiped',
  'opened',
  'made',
  'filled',
  'closed',
] as const;
export type RecoveryStep = (typeof RECOVERY_STEPS)[number];

/** The time cannot be recovered. */
export class NotRecoverable extends Error {}

/** The second server has failed, and would again. The log has the reason. */
export class ServerFailed extends Error {}

/** The database cannot be copied. */
export class Unsuitable extends Error {
  readonly findings: readonly SourceFinding[];

  constructor(findings: readonly SourceFinding[]) {
    super(findings.map(({ message }) => message).join('; '));
    this.findings = findings;
  }
}

const FAILED = finding(
  'connection',
  'The database host could not recover the branch as of this time. Contact its operator: the log of the agent says why.',
);

/** A clock of the gateway may be ahead by so much. Milliseconds. */
const AHEAD_MS = 30_000;
const ARCHIVED = { within: 120_000, every: 50 };
const READY_WITHIN_MS = 60_000;
const NO_WINDOW = { from: null, until: null };

/** @throws HostError HOST_BUSY, HOST_FULL, POSTGRES_UNAVAILABLE. A time outside of the window is a result */
export async function recoverDatabase(
  host: RecoveryHost,
  params: RecoverParams,
  onProgress?: OnProgress,
  reached?: Watched['reached'],
): Promise<Recovered> {
  const end = await host.past.turns.begin(await readTenant(host.postgres, params.project_id));
  try {
    const locks = [`clone:${params.snapshot_id}`, `clone:${params.job_id}`] as const;
    return await withLocks(host.sessions, locks, async (session) => {
      const present = await readSnapshotSize(session, params.snapshot_id);
      if (present !== null) return { recovered: { size_bytes: present }, window: NO_WINDOW, findings: [] };
      const { snapshot_id, ...target } = params;
      const watched = { onProgress, ...(reached && { reached }) };
      try {
        return await recoverTo(host, session, target, watched, async ({ database, warnings, reach }) => {
          await closeLoadAsSnapshot(session, { ...params, database });
          await reach('closed');
          const size_bytes = (await readSnapshotSize(session, snapshot_id)) ?? 0;
          return { recovered: { size_bytes }, window: NO_WINDOW, findings: warnings };
        });
      } catch (error) {
        const nothing = { recovered: null, window: NO_WINDOW };
        if (error instanceof ServerFailed) return { ...nothing, findings: [FAILED] };
        if (error instanceof Unsuitable) return { ...nothing, findings: [...error.findings] };
        if (!(error instanceof NotRecoverable)) throw error;
        host.log('past.not_recoverable', { job_id: params.job_id, reason: error.message });
        return { recovered: null, window: await windowNow(host), findings: [] };
      }
    });
  } finally {
    end();
  }
}

/** The recovered database, which only this process may enter. */
interface Filled {
  /** Name of the database at that time. */
  database: string;
  warnings: SourceFinding[];
  reach: (step: RecoveryStep) => Promise<void>;
}

/**
 * Recovers a database, and gives it to `finish`. One that it leaves as it is is dropped by the next call for the job, or by
 * `removeLoad`. The caller has the turn, and the lock of the job.
 * @throws NotRecoverable, ServerFailed, Unsuitable, HostError
 */
export async function recoverTo<T>(
  host: RecoveryHost,
  session: Session,
  target: Target,
  watched: Watched,
  finish: (filled: Filled) => Promise<T>,
): Promise<T> {
  await removeLoad(session, target);
  const recovery = new Recovery(host, session, target, watched);
  try {
    return await recovery.run(finish);
  } finally {
    await recovery.end();
  }
}

async function windowNow({ past, postgres }: RecoveryHost): Promise<Recovered['window']> {
  const [oldest] = await past.copies();
  if (!oldest) return NO_WINDOW;
  const { rows } = await postgres.query<{ now: Moment }>(`SELECT ${CLOCK} AS now`);
  return { from: oldest.ended_at, until: rows[0]?.now ?? null };
}

/** Removes what killed recoveries have left. To be called before the first one of this process. */
export async function removeLeftRecoveries(settings: Parameters<typeof pastFolders>[0]): Promise<void> {
  const { recoveries } = pastFolders(settings);
  for (const name of await readdir(recoveries).catch(() => [] as string[]))
    await removeRecovery(join(recoveries, name));
}

async function removeRecovery(folder: string): Promise<void> {
  await SecondServer.endLeft(folder);
  await removeFolder(folder);
}

class Recovery {
  readonly #host: RecoveryHost;
  readonly #session: Session;
  readonly #params: Target;
  readonly #onProgress: OnProgress | undefined;
  readonly #reached: (step: RecoveryStep) => Promise<void>;
  readonly #folders: PastFolders;
  readonly #folder: string;
  readonly #stop = new AbortController();
  #server: SecondServer | null = null;

  constructor(
    host: RecoveryHost,
    session: Session,
    params: Target,
    { onProgress, reached = async () => {}, signal }: Watched,
  ) {
    this.#host = host;
    this.#session = session;
    this.#params = params;
    this.#onProgress = onProgress;
    this.#folders = pastFolders(host.settings);
    this.#folder = join(this.#folders.recoveries, params.job_id);
    this.#reached = (step) => reached(step, this.#folder);
    signal?.addEventListener('abort', () => this.#stop.abort(TOO_LONG), { once: true });
  }

  /** @throws NotRecoverable, ServerFailed, Unsuitable, HostError */
  async run<T>(finish: (filled: Filled) => Promise<T>): Promise<T> {
    const phases = new CopyPhases();
    const copy = await this.#chooseCopy();
    // A replay writes as well, and would take the room of the databases.
    if (await this.#host.past.lacksRoom())
      throw new HostError('HOST_FULL', 'the disk has no room for a recovery');
    const last = await this.#archive(copy);
    await this.#reached('archived');
    phases.end('archive');
    await this.#copyFiles(copy);
    await this.#reached('copied');
    phases.end('copy');
    const { database, oid, segment } = await this.#replay(copy, last);
    await this.#reached('replayed');
    phases.end('replay');
    await this.#wipe(oid, segment);
    await this.#reached('wiped');
    const server = await this.#open(database);
    await this.#reached('opened');
    phases.end('open');
    const result = await this.#transfer(server, database, phases, finish);
    this.#host.log('past.recovered', { job_id: this.#params.job_id, ms: phases.ms });
    return result;
  }

  async end(): Promise<void> {
    await this.#server?.remove();
    await removeRecovery(this.#folder);
  }

  /** The newest base copy from before the time. */
  async #chooseCopy(): Promise<BaseCopy> {
    const { at } = this.#params;
    const { rows } = await this.#session.query<{ ahead: number }>(
      'SELECT extract(epoch FROM $1::timestamptz - clock_timestamp())::float8 * 1000 AS ahead',
      [at],
    );
    const ahead = rows[0]?.ahead ?? 0;
    if (ahead > AHEAD_MS) throw new NotRecoverable('the time is in the future');
    // The commit that ends the replay has to be later.
    if (ahead >= 0) await sleep(ahead + 1);
    const copies = (await this.#host.past.copies()).filter(({ ended_at }) => ended_at <= at);
    const newest = copies.at(-1);
    if (!newest) throw new NotRecoverable('there is no base copy from before the time');
    return newest;
  }

  /**
   * Commits once more and waits until that is archived: PostgreSQL ends a replay at the first commit after the time. A segment
   * ends with it, so a time before the last such commit takes no other one.
   * @returns the number of the last segment
   */
  async #archive({ segment_bytes }: BaseCopy): Promise<number> {
    const { past } = this.#host;
    if (past.archived !== null && this.#params.at < past.archived.until) return past.archived.segment;
    const { rows: clock } = await this.#session.query<{ now: Moment }>(`SELECT ${CLOCK} AS now`);
    await this.#session.query('BEGIN; SELECT pg_current_xact_id(); COMMIT');
    const { rows } = await this.#session.query<{ segment: string }>(
      'SELECT pg_walfile_name(pg_switch_wal()) AS segment',
    );
    const segment = rows[0]?.segment ?? '';
    const isDone = async () => {
      const { rows } = await this.#session.query(
        'SELECT FROM pg_stat_archiver WHERE last_archived_wal >= $1',
        [segment],
      );
      if (isArchived(this.#folders, segment)) return true;
      // A full volume has left it out.
      if (rows.length > 0) throw new NotRecoverable('the archive has no room');
      return false;
    };
    if (!(await pollUntil(isDone, ARCHIVED)))
      throw new HostError('HOST_BUSY', `PostgreSQL has not archived ${segment} in time: see its log`);
    past.archived = { until: clock[0]?.now ?? '', segment: segmentNumber(segment, segment_bytes) ?? 0 };
    return past.archived.segment;
  }

  /** Files of other projects are left out where the WAL has whole pages, as what is replayed does not read them then. */
  async #copyFiles(copy: BaseCopy): Promise<void> {
    const { bisection_id, project_id } = this.#params;
    const to = join(this.#folder, 'data');
    const { bisections, method } = this.#host.past;
    if (bisection_id === undefined) return this.#copyBase(copy, to);
    const { good, advancedTo } = bisections.probeOf(bisection_id, project_id);
    const folder = bisections.folderOf(bisection_id);
    const data = join(folder, 'data');
    if (copy.ended_at > good) return this.#copyBase(copy, to);
    // The copy is replayed further, never back.
    if (advancedTo !== good) {
      // A failure leaves a copy that nobody knows the time of, so the next probe begins again.
      bisections.advanced(bisection_id, null);
      if (advancedTo === null) await removeRecovery(folder);
      if (advancedTo === null) await this.#copyBase(copy, data);
      await this.#advance(folder, good);
      bisections.advanced(bisection_id, good);
    }
    await mkdir(this.#folder, { recursive: true, mode: 0o700 });
    await copyTree(data, to, method);
  }

  /** Replays the copy of a bisection up to a time, and stops there. */
  async #advance(folder: string, at: Moment): Promise<void> {
    const server = await SecondServer.in(this.#host.settings, folder);
    try {
      // PostgreSQL does not start without a rule, and accepts nobody before the end of a replay.
      await server.start({ at, wal: this.#folders.wal, stops: true }, [[PLATFORM_ROLE, PLATFORM_ROLE]]);
      if (!(await server.hasStopped(this.#stop.signal))) {
        this.#host.log('past.server_failed', { job_id: this.#params.job_id, lines: server.lines });
        throw new ServerFailed(`the replay: ${server.lines.at(-1)}`);
      }
    } finally {
      await server.remove();
      await rm(join(folder, 'sockets'), { force: true });
    }
  }

  async #copyBase({ name, projects, logs_pages }: BaseCopy, to: string): Promise<void> {
    const { project_id } = this.#params;
    const from = dataOf(this.#folders, name);
    await mkdir(join(to, 'base'), { recursive: true, mode: 0o700 });
    for (const folder of EMPTY) await mkdir(join(to, folder), { recursive: true, mode: 0o700 });
    const isOthers = (oid: string) =>
      logs_pages && projects[oid] !== undefined && projects[oid] !== project_id;
    for (const part of await readdir(from)) {
      if (part === 'base' || EMPTY.some((folder) => folder.split('/', 1)[0] === part)) continue;
      await copyTree(join(from, part), join(to, part), this.#host.past.method);
    }
    for (const oid of await readdir(join(from, 'base')))
      if (isOthers(oid)) await mkdir(join(to, 'base', oid), { mode: 0o700 });
      else await copyTree(join(from, 'base', oid), join(to, 'base', oid), this.#host.past.method);
  }

  /** @returns the database that the branch had */
  async #replay(
    { segment, segment_bytes }: BaseCopy,
    last: number,
  ): Promise<{ database: string; oid: string; segment: string }> {
    const { at, project_id, branch_id } = this.#params;
    this.#server = await SecondServer.in(this.#host.settings, this.#folder);
    const server = this.#server;
    const progress = partOf(this.#onProgress, 0, 0.5);
    const end = progress && (await firstArchivedSince(this.#folders, segment, Date.parse(at)));
    const meter = new ReplayMeter(segmentNumber(end ?? '', segment_bytes) ?? last, segment_bytes);
    let hasEndedEarly = false;
    const beside: { before: Moment | null; after: Moment | null } = { before: null, after: null };
    const onLine = (line: string) => {
      if (line.includes('recovery stopping before')) beside.after = committedAt(line);
      if (line.includes('last completed transaction was at')) beside.before = committedAt(line);
      const [, restored = ''] = /^LOG:\s+restored log file "([0-9A-F]{24})" from archive/.exec(line) ?? [];
      const replay = meter.reached(restored);
      if (replay) progress?.(replay.replayed_bytes / replay.bytes, () => ({ replay }));
      hasEndedEarly ||= line.includes('recovery ended before configured recovery target was reached');
    };
    const replay = { at, position: this.#params.position, wal: this.#folders.wal };
    await server.start(replay, [[PLATFORM_ROLE, PLATFORM_ROLE]], onLine);
    const within = SECOND_SERVER.replayWithin;
    if (!(await server.isReady(PLATFORM_ROLE, PLATFORM_ROLE, within, this.#stop.signal))) {
      if (hasEndedEarly) throw new NotRecoverable('the archive ends before the time');
      throw this.#failed('the replay');
    }
    const { bisection_id } = this.#params;
    if (bisection_id !== undefined) this.#host.past.bisections.recovered(bisection_id, beside);
    return server.asPlatform(async (session) => {
      const { rows } = await session.query<{ database: string; oid: string }>(
        `SELECT datname AS database, d.oid::text FROM branch JOIN pg_database AS d ON datname = database
         WHERE branch_id = $1 AND project_id = $2`,
        [branch_id, project_id],
      );
      const [found] = rows;
      if (!found) throw new NotRecoverable('the branch had no database at the time');
      return { ...found, segment: await this.#disarm(session, found.database) };
    });
  }

  /**
   * Leaves one login, for the one database, and nobody else's secrets. Nothing of a tenant has run.
   * @returns the first segment of the WAL without anything of the replay
   */
  async #disarm(session: Session, database: string): Promise<string> {
    const [login, name, owners] = [this.#login, database, groupName(this.#params.project_id, 'owner')].map(
      identifier,
    );
    await session.query(
      `DELETE FROM pg_catalog.pg_subscription;
       UPDATE pg_catalog.pg_authid SET rolpassword = NULL WHERE rolpassword IS NOT NULL;
       DELETE FROM pg_catalog.pg_db_role_setting AS s WHERE NOT EXISTS (
         SELECT FROM pg_catalog.pg_database AS d WHERE d.oid = s.setdatabase AND s.setrole = 0 AND datname = ${literal(database)});
       CREATE ROLE ${login} LOGIN BYPASSRLS;
       GRANT ${owners}, pg_read_all_data TO ${login} WITH INHERIT TRUE, SET TRUE;
       ALTER DATABASE ${name} ALLOW_CONNECTIONS true CONNECTION LIMIT -1;
       GRANT CONNECT ON DATABASE ${name} TO ${login}`,
    );
    // The former rows are in the files until then.
    for (const catalog of ['pg_subscription', 'pg_authid', 'pg_db_role_setting'])
      await session.query(`VACUUM FULL pg_catalog.${catalog}`);
    await session.query('SELECT pg_switch_wal()');
    await session.query('CHECKPOINT');
    const { rows } = await session.query<{ segment: string }>(
      'SELECT pg_walfile_name(pg_current_wal_insert_lsn()) AS segment',
    );
    return rows[0]?.segment ?? '';
  }

  get #login(): string {
    return loadLoginName(this.#params.job_id);
  }

  /** Removes the files of all other databases, the agent's own among them, and the WAL that was replayed. */
  async #wipe(kept: string, first: string): Promise<void> {
    const server = this.#server;
    if (!server) throw new Error('no server was started');
    await server.stop('clean');
    const data = join(this.#folder, 'data');
    for (const oid of await readdir(join(data, 'base')))
      if (oid !== kept) await rm(join(data, 'base', oid), { recursive: true });
    const wal = await readdir(join(data, 'pg_wal'), { recursive: true, withFileTypes: true });
    for (const { name, parentPath } of wal.filter((entry) => entry.isFile()))
      if (!name.endsWith('.history') && (!isSegment(name) || name < first)) await rm(join(parentPath, name));
  }

  async #open(database: string): Promise<Source> {
    const server = this.#server;
    if (!server) throw new Error('no server was started');
    await server.start(null, [[database, this.#login]]);
    if (!(await server.isReady(this.#login, database, READY_WITHIN_MS, this.#stop.signal)))
      throw this.#failed('the start of the copy');
    const { host, port } = server.address;
    return {
      host,
      address: host,
      port,
      user: this.#login,
      password: '',
      database,
      mustVerify: false,
      isLocal: true,
    };
  }

  #failed(what: string): ServerFailed {
    const lines = this.#server?.lines ?? [];
    this.#host.log('past.server_failed', { job_id: this.#params.job_id, what, lines });
    return new ServerFailed(`${what}: ${lines.at(-1)}`);
  }

  async #transfer<T>(
    source: Source,
    database: string,
    phases: CopyPhases,
    finish: (filled: Filled) => Promise<T>,
  ): Promise<T> {
    const { job_id, project_id, branch_id, room_bytes, jobs } = this.#params;
    const ids = { job_id, project_id, branch_id, database };
    // As from another host of the same operator: complete, and with its roles.
    const how = { source_url: '', tables: null, busy_wait: 0, follow: null, of_host: true } as const;
    const copy = { ...ids, ...how, room_bytes, jobs };
    const wanted = {
      project_id,
      use: 'import',
      tables: null,
      publication: null,
      room_bytes,
      of_host: true,
    } as const;
    const examined = await examineAt(this.#host, source, wanted);
    if (!examined.ok) throw new HostError('INTERNAL', `the copy cannot be read: ${examined.failure.message}`);
    const { findings } = examined.value.probe;
    if (findings.some(({ severity }) => severity === 'error')) throw new Unsuitable(findings);
    const late = setTimeout(() => this.#stop.abort(TOO_LONG), SECOND_SERVER.copyWithin);
    try {
      await createClone(this.#host, this.#session, {
        name: loadDatabaseName(job_id),
        source: null,
        busy_wait: 0,
      });
      await furnishDatabase(this.#host, { database: loadDatabaseName(job_id), project_id });
      await this.#reached('made');
      const loaded = await fillLoad(
        this.#host,
        this.#session,
        copy,
        examined.value,
        this.#stop,
        phases,
        partOf(this.#onProgress, 0.5, 1),
      );
      if ('refused' in loaded) throw new Unsuitable([loaded.refused]);
      await this.#reached('filled');
      return await finish({ database, warnings: loaded.warnings, reach: this.#reached });
    } catch (error) {
      await removeLoad(this.#session, this.#params).catch(() => {});
      throw error;
    } finally {
      clearTimeout(late);
    }
  }
}

const TOO_LONG = finding('rows', 'The recovery has taken too long.');
