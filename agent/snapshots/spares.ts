import { SNAPSHOT_DATABASE, snapshotDatabaseName } from '../../shared/branch/database-name.ts';
import { queryLoginName } from '../../shared/branch/login.ts';
import { SPARES_AUTOMATIC_MAX, SPARES_MAX, type SparesState } from '../../shared/branch/snapshot.ts';
import type { SparesWait } from '../../shared/branch/spares-wait.ts';
import type { CloneTurns } from '../cloning/clone-turns.ts';
import { type CloneHost, createUnusedClone } from '../cloning/create-clone.ts';
import { identifier, type Pool, type Queryable, type Session } from '../postgres/connect.ts';
import { dropDatabase } from '../postgres/databases.ts';
import { countFiles } from '../postgres/file-bytes.ts';
import { withLocks } from '../postgres/locks.ts';
import { inAgentLogin } from '../postgres/login-session.ts';
import { sqlState } from '../postgres/postgres-failure.ts';
import { endSessions, hasBusyClients } from '../postgres/sessions.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { runLoop } from '../process/loops.ts';
import { SNAPSHOT_NAME } from './snapshot-databases.ts';

/**
 * Spares: closed clones of snapshots that are in use, so that a branch of one takes a rename instead of a clone.
 * They belong to the running agent alone: after a start it drops every spare that it does not know.
 */

/** What it takes to make spares. */
export interface SpareHost extends CloneHost {
  sessions: Pool;
  cloneTurns: CloneTurns;
  spares: Spares;
  log: Log;
}

/** A clone of a snapshot that no branch has yet. It can be dropped at any time. */
const spareName = (id: string): string => `bgspare_${id.replaceAll('-', '')}`;

const CHECK_EVERY_MS = 1_000;
const RECENT_MS = 60_000;
const UNUSED_AFTER_MS = 600_000;
/** After the last clone: its creation has more steps, and the next one may follow. */
const IDLE_FOR_MS = 250;
/**
 * While clients work, one spare is made or dropped, and then none for so many times as long. Each takes two checkpoints, after which
 * PostgreSQL logs whole pages, and most of a processor: without the rest it doubles the slowest transactions of a host with two.
 */
const REST_BESIDE_CLIENTS = 19;
/** What made room is not filled again before the operation that needs it has ended. */
const REST_MS = 60_000;
/** Bounds the files and the entries of `pg_database`, which all databases of a host share. */
const OF_PROJECT = SPARES_MAX;
/** Half of the host's: a tenant with many projects is no reason to drop those of another one. */
const OF_TENANT = 64;
const OF_HOST = 128;
/**
 * A tenant whose spares were dropped before a branch took them gets no more while so many count. One counts no more
 * after each such time: numbers that go up and down would have databases made and dropped without end.
 */
const UNUSED_MAX = 32;
const UNUSED_FORGOTTEN_AFTER_MS = 5_000;
/** A snapshot with more has none: each spare has as many, and all files of a host slow its checkpoints. */
const FILES_MAX = 2_000;
const DATABASE_GONE = '3D000';
/** What the proof of a branch reads too. */
const FIRST_QUERY = 'SELECT defaclacl::pg_catalog.text FROM pg_catalog.pg_default_acl';
/** Of the session that warmed a spare. */
const ENDING = { within: 4_000 };

/** What a project wants for one of its snapshots; null: automatic. */
interface Wish {
  snapshot: string;
  project_id: string;
  tenant: string;
  own: number | null;
  of_project: number | null;
}

/** With the number that the limits leave of it. */
interface CountedWish extends Wish {
  count: number;
}

/** A spare, and the name that a branch gives it. */
interface Renaming {
  spare: string;
  name: string;
}

/** Counts spares that were made for nothing: nobody took them, and their snapshots are still there. */
export class UnusedSpares {
  readonly #counts = new Map<string, { count: number; at: number }>();

  /** @param now milliseconds */
  add(tenant: string, now: number): void {
    this.#counts.set(tenant, { count: this.#countAt(tenant, now) + 1, at: now });
    for (const known of this.#counts.keys()) if (this.#countAt(known, now) === 0) this.#counts.delete(known);
  }

  isTooMany(tenant: string, now: number): boolean {
    return this.#countAt(tenant, now) > UNUSED_MAX - 1;
  }

  #countAt(tenant: string, now: number): number {
    const { count, at } = this.#counts.get(tenant) ?? { count: 0, at: now };
    return Math.max(0, count - (now - at) / UNUSED_FORGOTTEN_AFTER_MS);
  }
}

export class Spares {
  /** Names of the spares by the name of their snapshot's database, the oldest first. */
  readonly #ready = new Map<string, string[]>();
  /** When branches of the snapshot were created, in milliseconds of `performance.now()`. */
  readonly #uses = new Map<string, number[]>();
  /** Snapshots with too many files. */
  readonly #large = new Set<string>();
  /** By the name of the snapshot's database, of each that has or wants spares. */
  readonly #tenants = new Map<string, string>();
  readonly #unused: UnusedSpares;
  readonly #ofHost: number;
  readonly #log: Log;
  readonly #now: () => number;
  #restUntil = 0;
  /** The end of the rest after the last one, if clients work. */
  #pacedUntil = 0;
  /** Whether those of an earlier process are dropped. */
  #isSwept = false;
  /** Those that were taken since the agent started. */
  taken = 0;

  /**
   * @param ofHost how many there are at most
   * @param now milliseconds
   * @param unused those that were made for nothing before
   */
  constructor({
    ofHost = OF_HOST,
    log = () => {},
    now = () => performance.now(),
    unused = new UnusedSpares(),
  }: { ofHost?: number; log?: Log; now?: () => number; unused?: UnusedSpares } = {}) {
    this.#unused = unused;
    this.#log = log;
    this.#now = now;
    this.#ofHost = ofHost;
  }

  get count(): number {
    return [...this.#ready.values()].reduce((sum, { length }) => sum + length, 0);
  }

  /**
   * Gives spares of the snapshot these names, in one transaction. A source that is no snapshot has none.
   * @returns the names for which there was a spare
   */
  async take(session: Session, source: string, names: readonly string[]): Promise<string[]> {
    if (!SNAPSHOT_DATABASE.test(source) || names.length === 0) return [];
    const uses = [...(this.#uses.get(source) ?? []), ...names.map(() => this.#now())];
    this.#uses.set(source, uses.slice(-SPARES_MAX));
    const taken: Renaming[] = [];
    const next = () => {
      const left = names.filter((name) => !taken.some((one) => one.name === name));
      return this.#renamings(source, left);
    };
    for (let wanted = next(); wanted.length > 0; wanted = next()) {
      const renamed = (await this.#rename(session, wanted)) ? wanted : [];
      // Another agent process has dropped one of them.
      if (renamed.length === 0 && wanted.length > 1)
        for (const one of wanted) if (await this.#rename(session, [one])) renamed.push(one);
      taken.push(...renamed);
    }
    for (const { spare, name } of taken) this.#log('spare.taken', { database: spare, as: name });
    this.taken += taken.length;
    return taken.map(({ name }) => name);
  }

  /** Takes a spare for each name, as far as there are any. */
  #renamings(source: string, names: readonly string[]): Renaming[] {
    return names.flatMap((name) => {
      const spare = this.#next(source);
      return spare ? [{ spare, name }] : [];
    });
  }

  /** @returns false if one of the spares is gone; then none was renamed */
  async #rename(session: Session, renamings: readonly Renaming[]): Promise<boolean> {
    // Statements that are sent together are one transaction.
    const statements = renamings.map(
      ({ spare, name }) =>
        `ALTER DATABASE ${identifier(spare)} RENAME TO ${identifier(name)};
         ALTER DATABASE ${identifier(name)} ALLOW_CONNECTIONS true`,
    );
    try {
      await session.query(statements.join(';'));
      return true;
    } catch (error) {
      if (sqlState(error) === DATABASE_GONE) return false;
      // They are in no list any more.
      this.#isSwept = false;
      throw error;
    }
  }

  #next(snapshot: string): string | undefined {
    const ready = this.#ready.get(snapshot) ?? [];
    const spare = ready.shift();
    if (ready.length === 0) this.#ready.delete(snapshot);
    return spare;
  }

  /** For a snapshot that is dropped. */
  async dropOf(db: Queryable, snapshotId: string): Promise<void> {
    const snapshot = snapshotDatabaseName(snapshotId);
    this.#uses.delete(snapshot);
    this.#large.delete(snapshot);
    while (await this.#drop(db, snapshot));
  }

  #tenantOf = (snapshot: string): string => this.#tenants.get(snapshot) ?? snapshot;

  /** @returns whether there was one */
  async #drop(db: Queryable, snapshot: string): Promise<boolean> {
    const spare = this.#next(snapshot);
    if (!spare) return false;
    await dropDatabase(db, spare);
    return true;
  }

  /** Makes room: drops all spares, and makes none for a minute. @returns whether there was one */
  async dropAll(db: Queryable): Promise<boolean> {
    this.#restUntil = this.#now() + REST_MS;
    const doomed = [...this.#ready.values()].flat();
    this.#ready.clear();
    for (const spare of doomed) await dropDatabase(db, spare);
    return doomed.length > 0;
  }

  /** Drops what is not wanted, and makes what is missing, one at a time, while nobody waits for a clone. */
  async keep(host: SpareHost, signal: AbortSignal): Promise<void> {
    if (!this.#isSwept) await this.#sweep(host);
    const wanted = await this.wanted(host.postgres);
    const surplus = [...this.#ready].flatMap(([snapshot, ready]) =>
      ready.slice(wanted.get(snapshot) ?? 0).map(() => snapshot),
    );
    for (const snapshot of surplus) {
      const isOrphan = !wanted.has(snapshot);
      if (signal.aborted || (!isOrphan && (await this.#rests(host)))) return;
      // One whose snapshot is gone had a reason to go.
      if (!isOrphan) this.#unused.add(this.#tenantOf(snapshot), this.#now());
      await this.#paced(() => this.#drop(host.postgres, snapshot));
      // It was made while its snapshot was dropped, and kept the groups of a deleted project.
      if (isOrphan) await withLocks(host.sessions, [], dropUnusedRoles);
    }
    const refused = new Set<string>();
    while (this.#mayMake(host) && !signal.aborted) {
      const snapshot = this.#neediest(wanted, refused);
      if (snapshot === undefined || (await this.#rests(host))) break;
      const isMade = await this.#paced(
        async () => (await this.#makePlace(host.postgres, snapshot)) && (await this.#make(host, snapshot)),
      );
      if (!isMade) refused.add(snapshot);
    }
  }

  /** Whether clients work that the last one may have slowed. */
  async #rests({ postgres }: SpareHost): Promise<boolean> {
    return this.#now() < this.#pacedUntil && (await hasBusyClients(postgres));
  }

  async #paced<T>(work: () => Promise<T>): Promise<T> {
    const began = this.#now();
    try {
      return await work();
    } finally {
      const ended = this.#now();
      this.#pacedUntil = Math.max(this.#pacedUntil, ended + REST_BESIDE_CLIENTS * (ended - began));
    }
  }

  /** The snapshot that gets the next spare: one of the tenant that has fewest, so that nobody waits for one that uses many. */
  #neediest(wanted: ReadonlyMap<string, number>, refused: ReadonlySet<string>): string | undefined {
    const counts = this.#counts();
    const now = this.#now();
    const ready = this.#readyOf;
    const ofTenant = (snapshot: string) => counts.get(this.#tenantOf(snapshot)) ?? 0;
    return [...wanted.keys()]
      .filter(
        (snapshot) =>
          ready(snapshot) < (wanted.get(snapshot) ?? 0) &&
          !refused.has(snapshot) &&
          !this.#unused.isTooMany(this.#tenantOf(snapshot), now),
      )
      .sort((one, other) => ofTenant(one) - ofTenant(other) || ready(one) - ready(other))[0];
  }

  /** How many spares each tenant has. */
  #counts(): Map<string, number> {
    const counts = new Map<string, number>();
    for (const [snapshot, { length }] of this.#ready) {
      const tenant = this.#tenantOf(snapshot);
      counts.set(tenant, (counts.get(tenant) ?? 0) + length);
    }
    return counts;
  }

  /**
   * On a full host, drops a spare of the tenant that has most, for one that has fewer. It was not made for nothing.
   * @returns false if no tenant has at least two more
   */
  async #makePlace(db: Queryable, snapshot: string): Promise<boolean> {
    if (this.count < this.#ofHost) return true;
    const giver = this.#giver(snapshot);
    const spare = giver && this.#next(giver);
    if (spare) await dropDatabase(db, spare);
    return giver !== undefined;
  }

  /** A snapshot of the tenant that has most, if that has at least two more than the tenant of this one. */
  #giver(snapshot: string): string | undefined {
    const counts = this.#counts();
    const most = Math.max(...counts.values());
    if (most - 1 <= (counts.get(this.#tenantOf(snapshot)) ?? 0)) return undefined;
    return [...this.#ready.keys()].find((name) => counts.get(this.#tenantOf(name)) === most);
  }

  #mayMake({ cloneTurns }: SpareHost): boolean {
    return this.#now() >= this.#restUntil && cloneTurns.idleMs >= IDLE_FOR_MS;
  }

  /** @returns false if the snapshot is being dropped, or has too many files */
  async #make(host: SpareHost, snapshot: string): Promise<boolean> {
    if (await this.#isLarge(host, snapshot)) return false;
    const id = crypto.randomUUID();
    const name = spareName(id);
    host.log('spare.begun', { database: name, snapshot });
    try {
      await withLocks(host.sessions, [], async (session) => {
        await createUnusedClone(host, session, { name, source: snapshot, closed: true });
        await warm(host, session, id);
      });
    } catch (error) {
      if (
        sqlState(error) === DATABASE_GONE ||
        (error instanceof HostError && error.code === 'SOURCE_MISSING')
      )
        return false;
      this.#restUntil = this.#now() + REST_MS;
      this.#isSwept = false;
      throw error;
    }
    this.#ready.set(snapshot, [...(this.#ready.get(snapshot) ?? []), name]);
    return true;
  }

  async #isLarge({ postgres, settings }: SpareHost, snapshot: string): Promise<boolean> {
    const { rows } = await postgres.query<{ oid: string }>(
      'SELECT oid::text FROM pg_database WHERE datname = $1',
      [snapshot],
    );
    const isLarge = rows[0] !== undefined && (await countFiles(settings.PGDATA_DIR, rows[0].oid)) > FILES_MAX;
    if (isLarge) this.#large.add(snapshot);
    return isLarge;
  }

  /** Drops those of an earlier agent process, and those that a crash left half-made or half-dropped. */
  async #sweep({ postgres: db, sessions }: SpareHost): Promise<void> {
    const known = [...this.#ready.values()].flat();
    const { rows } = await db.query<{ name: string }>(
      `SELECT datname AS name FROM pg_database
       WHERE datname ~ '^bgspare_[0-9a-f]{32}$' AND (datname <> ALL ($1) OR datconnlimit = -2)`,
      [known],
    );
    // One that is taken meanwhile has another name by now, and dropping it is no error.
    for (const { name } of rows) await dropDatabase(db, name);
    // A kill can have left the login of one.
    await withLocks(sessions, [], dropUnusedRoles);
    this.#isSwept = true;
  }

  /** How many spares each snapshot is to have that has some, or may have. Those that are not in it were dropped. */
  async wanted(db: Queryable): Promise<Map<string, number>> {
    return new Map((await this.#wishes(db)).map(({ snapshot, count }) => [snapshot, count]));
  }

  /** What a project has asked for, what it has, and why it does not have the rest. */
  async read(
    { postgres, cloneMethod }: Pick<SpareHost, 'postgres' | 'cloneMethod'>,
    projectId: string,
  ): Promise<SparesState> {
    const wishes = (await this.#wishes(postgres)).filter(({ project_id }) => project_id === projectId);
    const { rows } = await postgres.query<{ spares: number | null }>(
      'SELECT spares FROM project WHERE project_id = $1',
      [projectId],
    );
    const asked = wishes.map((wish) => wish.own ?? wish.of_project ?? wish.count);
    const wanted = Math.min(
      OF_PROJECT,
      wishes.length > 0 ? asked.reduce((sum, one) => sum + one, 0) : (rows[0]?.spares ?? 0),
    );
    const ready = wishes.reduce((sum, { snapshot }) => sum + this.#readyOf(snapshot), 0);
    const waiting_for =
      ready >= wanted ? null : cloneMethod === 'reflink' ? await this.#waitOf(postgres, wishes) : 'reflink';
    return { wanted, ready, waiting_for };
  }

  /** @param wishes of a project that has fewer than it has asked for */
  async #waitOf(db: Queryable, wishes: readonly CountedWish[]): Promise<SparesWait> {
    const now = this.#now();
    const [first] = wishes;
    const missing = wishes.filter(({ snapshot, count }) => this.#readyOf(snapshot) < count);
    if (!first) return 'use';
    if (!missing[0]) return wishes.some(({ snapshot }) => this.#large.has(snapshot)) ? 'files' : 'limit';
    if (now < this.#restUntil) return 'room';
    if (this.#unused.isTooMany(first.tenant, now)) return 'unused';
    if (this.count >= this.#ofHost && !this.#giver(missing[0].snapshot)) return 'limit';
    return now < this.#pacedUntil && (await hasBusyClients(db)) ? 'clients' : 'making';
  }

  #readyOf = (snapshot: string): number => this.#ready.get(snapshot)?.length ?? 0;

  /** The newest snapshots first. */
  async #wishes(db: Queryable): Promise<CountedWish[]> {
    const now = this.#now();
    for (const [snapshot, uses] of this.#uses)
      if (now - (uses.at(-1) ?? 0) > UNUSED_AFTER_MS) this.#uses.delete(snapshot);
    const { rows } = await db.query<Wish>(
      `SELECT ${SNAPSHOT_NAME} AS snapshot, project_id, coalesce(project.tenant, project_id::text) AS tenant,
         snapshot.spares AS own, project.spares AS of_project
       FROM snapshot JOIN project USING (project_id) JOIN pg_database ON datname = ${SNAPSHOT_NAME}
       WHERE datconnlimit <> -2 AND (snapshot.spares > 0 OR datname = ANY ($1))
       ORDER BY taken_at DESC`,
      [[...this.#uses.keys(), ...this.#ready.keys()]],
    );
    for (const snapshot of this.#tenants.keys())
      if (!this.#ready.has(snapshot)) this.#tenants.delete(snapshot);
    for (const { snapshot, tenant } of rows) this.#tenants.set(snapshot, tenant);
    const ofProjects = new Map<string, number>();
    const ofTenants = new Map<string, number>();
    return rows.map((wish) => {
      const ofProject = ofProjects.get(wish.project_id) ?? 0;
      const ofTenant = ofTenants.get(wish.tenant) ?? 0;
      const count = Math.min(this.#wish(wish, now), OF_PROJECT - ofProject, OF_TENANT - ofTenant);
      ofProjects.set(wish.project_id, ofProject + count);
      ofTenants.set(wish.tenant, ofTenant + count);
      return { ...wish, count };
    });
  }

  #wish({ snapshot, own, of_project }: Wish, now: number): number {
    if (this.#large.has(snapshot) || (own === null && !this.#uses.has(snapshot))) return 0;
    const fixed = own ?? of_project;
    if (fixed !== null) return fixed;
    const recent = (this.#uses.get(snapshot) ?? []).filter((at) => now - at <= RECENT_MS).length;
    // Those that are ready stay until the snapshot is unused.
    return Math.min(SPARES_AUTOMATIC_MAX, Math.max(recent, this.#ready.get(snapshot)?.length ?? 0));
  }
}

/**
 * Opens and ends one session in a spare. The first session of a database reads its catalogs from the disk and writes
 * their cache, which the proof of a branch would otherwise wait for. No superuser runs anything in a tenant's content,
 * so it has a login of its own, which is a member of nothing, has no password, and is dropped before the spare can be
 * taken. A spare whose session failed is only slower.
 */
async function warm({ settings, log }: SpareHost, session: Session, id: string): Promise<void> {
  const name = spareName(id);
  const login = queryLoginName(id);
  const database = identifier(name);
  try {
    await session.query(
      `CREATE ROLE ${identifier(login)} LOGIN CONNECTION LIMIT 1;
       REVOKE ALL ON DATABASE ${database} FROM PUBLIC;
       GRANT CONNECT ON DATABASE ${database} TO ${identifier(login)};
       ALTER DATABASE ${database} ALLOW_CONNECTIONS true CONNECTION LIMIT 1`,
    );
    await inAgentLogin(settings, { login, database: name }, (one) => one.query(FIRST_QUERY));
  } catch (error) {
    log('spare.cold', { database: name, reason: error instanceof Error ? error.message : String(error) });
  }
  await session.query(
    `ALTER DATABASE ${database} ALLOW_CONNECTIONS false CONNECTION LIMIT 0;
     REVOKE ALL ON DATABASE ${database} FROM ${identifier(login)};
     DROP ROLE ${identifier(login)}`,
  );
  // A rename waits for sessions that are ending.
  await endSessions(session, 'FROM pg_stat_activity WHERE datname = $1', [name], ENDING);
}

/** Only where a clone shares its blocks: a spare that copied each of them would take room that nobody asked for. */
export async function runSpareLoop(host: SpareHost, signal: AbortSignal): Promise<void> {
  if (host.cloneMethod !== 'reflink') return;
  const keep = () => host.spares.keep(host, signal);
  await runLoop(keep, { every: CHECK_EVERY_MS, signal, log: host.log, failed: 'spares.not_made' });
}
