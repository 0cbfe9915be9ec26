import { sharedNextFlight } from '../../shared/single-flight.ts';
import { type Block, type Blocker, blockKey, readBlocks } from '../blocks/stored-blocks.ts';
import { PacketFilter } from '../firewall/packet-filter.ts';
import {
  countsClients,
  endLogins,
  oldest,
  readPoolerVersion,
  reloadAdminConsole,
  waitUntilApplied,
  withAdminConsoles,
} from '../pooler/admin-console.ts';
import { readRestart } from '../pooler/restart-state.ts';
import type { Pool, Session } from '../postgres/connect.ts';
import { withHostLock, withLocks } from '../postgres/locks.ts';
import { HostError } from '../process/host-error.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { ensureNetworks, NetworkMembers } from './networks.ts';
import {
  databasesOf,
  makeRulesFolder,
  type PooledServer,
  poolerEntries,
  RULE_FILE_NAMES,
  type RuleFileTexts,
  readRuleFiles,
  ruleFiles,
  type StandbyLogin,
  withBlocked,
  withinLargerNetworks,
  writeRuleFiles,
} from './rule-files.ts';
import { KnownAccess, type LimitedAccess, readMovers, readSqlNetworks } from './store-access.ts';

/** What is blocked: by the watches of this process, and in the tables at the last sync. */
class KnownBlocks {
  stored: readonly Block[] = [];
  readonly #watched: Record<Blocker, readonly Block[]> = { attempts: [], guard: [] };

  /** @returns false if these are the blocks of this blocker already */
  replace(blocker: Blocker, blocks: readonly Block[]): boolean {
    const present = new Set(this.#watched[blocker].map(blockKey));
    if (blocks.length === present.size && blocks.every((block) => present.has(blockKey(block)))) return false;
    this.#watched[blocker] = blocks;
    return true;
  }

  all(): Block[] {
    return [...this.stored, ...this.#watched.attempts, ...this.#watched.guard];
  }
}

/** Databases that are temporarily removed from the pooler, by any number of concurrent calls. */
class WithheldDatabases {
  readonly #calls = new Map<string, number>();

  add(databases: readonly string[]): void {
    for (const database of databases) this.#calls.set(database, (this.#calls.get(database) ?? 0) + 1);
  }

  remove(databases: readonly string[]): void {
    for (const database of databases) {
      const calls = (this.#calls.get(database) ?? 0) - 1;
      if (calls > 0) this.#calls.set(database, calls);
      else this.#calls.delete(database);
    }
  }

  names(): string[] {
    return [...this.#calls.keys()];
  }
}

/**
 * Brings the access in the agent's tables to both servers: as rule files, and at PostgreSQL as members of its
 * networks' roles.
 */
export class RuleSync {
  readonly #settings: AgentSettings;
  readonly #pool: Pool;
  /**
   * The files known to be in effect on both servers. Null at first: a killed agent may not have reloaded
   * them.
   */
  #applied: RuleFileTexts | null = null;
  /** The files of the last sync, as if nothing was blocked. */
  #unblocked: RuleFileTexts | null = null;
  readonly #access = new KnownAccess();
  /** The branches of the last sync, in the order of their databases. */
  #branches: readonly LimitedAccess[] = [];
  /** Ids of branches and projects whose networks were not made yet; null: any. */
  #unmade: string[] | null = null;
  readonly #members = new NetworkMembers();
  /** PostgreSQL's file as this process last wrote or found it. */
  #postgresHba = '';
  readonly #blocks = new KnownBlocks();
  /** Null when the rules are not published to a packet filter. */
  readonly #filter: PacketFilter | null;
  /** The pooler's version; null until it has reported it. */
  #poolerVersion: string | null = null;
  readonly #withheld = new WithheldDatabases();
  #isClosed = false;

  constructor(settings: AgentSettings, pool: Pool) {
    this.#settings = settings;
    this.#pool = pool;
    this.#filter = settings.FIREWALL === 'nftables' ? new PacketFilter(settings) : null;
  }

  /** Connection attempts a minute that the branch accepts; null: the default. */
  attemptsOf(branchId: string): number | null {
    return this.#access.of(branchId)?.connection_attempts ?? null;
  }

  /** True while another host takes the place of this one: no client is admitted. */
  get isClosed(): boolean {
    return this.#isClosed;
  }

  /** Admits no client, or those of the rules again, from the next sync on. */
  close(isClosed: boolean): void {
    this.#isClosed = isClosed;
  }

  /**
   * Publishes the networks to the packet filter if someone has changed it there, or if a control tool that
   * may not do it has changed the rules.
   * @throws as `sync`
   */
  async restoreFilter(): Promise<void> {
    if (!this.#filter) return;
    if (!(await this.#filter.isIntact())) this.#filter.forget();
    await this.sync();
  }

  /**
   * Resolves when both servers apply the access that the tables held at the time of the call, or newer
   * access. The packet filter, if there is one, admits the same networks then. A reload briefly stalls every
   * pooled client, so calls made during a sync share the next one.
   * @throws HostError RULES_NOT_APPLIED, POOLER_UNAVAILABLE
   */
  sync(): Promise<void> {
    return this.#syncNext();
  }

  /** Syncs all that the tables hold, and not only the changes since the last sync. @throws as `sync` */
  syncAll(): Promise<void> {
    this.#access.forget();
    return this.sync();
  }

  readonly #syncNext = sharedNextFlight(() =>
    withLocks(this.#pool, [], (session) => withHostLock(session, 'rules', () => this.#sync(session))),
  );

  /**
   * Removes these databases from the pooler, which disconnects their clients, during `action`.
   * @throws as `sync`
   */
  async withhold(databases: readonly string[], action: () => Promise<void>): Promise<void> {
    this.#withheld.add(databases);
    try {
      await this.sync();
      await action();
    } finally {
      this.#withheld.remove(databases);
      await this.sync();
    }
  }

  /**
   * Makes both servers apply exactly these blocks of one blocker, as fast as possible, because password
   * guessing continues meanwhile. It therefore starts from the state of the last sync, takes no lock and does
   * not wait until the servers have applied them; the caller calls `sync` next. Calls of the same blocker
   * must not run concurrently.
   * @throws HostError POOLER_UNAVAILABLE
   */
  async block(blocker: Blocker, blocks: readonly Block[]): Promise<void> {
    const isChange = this.#blocks.replace(blocker, blocks);
    const unblocked = this.#unblocked;
    if (!isChange || !unblocked) return;
    const texts = this.#withBlocks(unblocked);
    writeRuleFiles(rulesFolder(this.#settings), texts, ['poolerHba'], 'now');
    await Promise.all([
      this.#blockDirect(unblocked, texts),
      withAdminConsoles(this.#settings, (console) => console.query('RELOAD')),
    ]);
  }

  async #blockDirect(unblocked: RuleFileTexts, texts: RuleFileTexts): Promise<void> {
    const reject = async (postgresHba: string) => {
      if (postgresHba === this.#postgresHba) return;
      this.#postgresHba = postgresHba;
      writeRuleFiles(rulesFolder(this.#settings), { ...texts, postgresHba }, ['postgresHba'], 'now');
      await this.#pool.query('SELECT pg_reload_conf()');
    };
    const admit = async () => {
      const session = await this.#pool.connect();
      try {
        await this.#admit(session, async () => {});
      } finally {
        session.release();
      }
    };
    // A full lock table prevents the change of members, but not a reload.
    await Promise.all([
      reject(texts.postgresHba),
      admit().catch(() => reject(this.#withBlocks(unblocked, this.#blocks.all()).postgresHba)),
    ]);
  }

  #admit<T>(session: Session, prepare: () => Promise<T>): Promise<T> {
    const access = () => ({ branches: this.#branches, blocks: this.#blocks.all() });
    return this.#members.admit(session, access, prepare);
  }

  async #sync(session: Session): Promise<void> {
    const server = await this.#pooledServer();
    const changed = await this.#access.read(session);
    this.#unmade = this.#unmade && changed && [...this.#unmade, ...changed];
    const branches = this.#isClosed ? [] : this.#access.branches;
    const standbys = await readStandbys(session);
    const movers = this.#isClosed ? [] : await readMovers(session);
    const blocks = await readBlocks(session);
    const folder = rulesFolder(this.#settings);
    await makeRulesFolder(folder);
    this.#blocks.stored = blocks;
    this.#branches = branches;
    if (!this.#isClosed) {
      const unmade = this.#applied === null ? null : this.#unmade;
      this.#access.changeNetworks(await this.#admit(session, () => ensureNetworks(session, unmade)));
      this.#unmade = [];
    }
    const networks = this.#isClosed ? [] : this.#access.networks;
    const found = await readRuleFiles(folder);
    // Nothing is awaited from here until the files are written, or a client blocked meanwhile would be
    // admitted again.
    const withheld = new Set([
      ...this.#withheld.names(),
      ...blocks.flatMap(({ reason, database }) => (reason === 'attempts' ? [] : [database])),
    ]);
    const pooled = branches.filter(({ database }) => !withheld.has(database));
    this.#unblocked = ruleFiles(
      pooled,
      networks,
      server,
      standbys,
      movers,
      this.#settings.SQL_PORT > 0 && !this.#isClosed,
    );
    const wanted = this.#withBlocks(this.#unblocked);
    // The files on disk are compared too, because a control tool may have written them in the meantime.
    if (!(sameTexts(found, wanted) && this.#applied && sameTexts(this.#applied, wanted)))
      await this.#apply(session, { found, wanted, server });
    if (!this.#filter) return;
    const ofBranches = branches.flatMap(({ cidrs }) => cidrs);
    await this.#filter.publish({
      servers: [...ofBranches, ...[...standbys, ...movers].flatMap(({ cidrs }) => cidrs)],
      sql: this.#isClosed ? [] : [...ofBranches, ...(await readSqlNetworks(session))],
    });
  }

  async #apply(
    session: Session,
    { found, wanted, server }: { found: RuleFileTexts; wanted: RuleFileTexts; server: PooledServer },
  ): Promise<void> {
    const folder = rulesFolder(this.#settings);
    const staying = new Set(databasesOf(wanted.poolerDatabases));
    // Databases that leave the pooler keep their entries until no login to them is in progress.
    const leaving = databasesOf(found.poolerDatabases).filter((database) => !staying.has(database));
    const entries = [...staying, ...leaving];
    const written = { ...wanted, poolerDatabases: poolerEntries(entries, server) };
    writeRuleFiles(folder, written, differingFiles(found, written));
    const isApplied = [found, this.#applied].every((texts) => texts?.postgresHba === wanted.postgresHba);
    // A control tool may have written other files meanwhile.
    const isKnown = this.#applied?.poolerDatabases === found.poolerDatabases;
    const served = isKnown ? new Set(databasesOf(found.poolerDatabases)) : null;
    const error = isApplied ? null : await hbaError(session);
    if (error) {
      // PostgreSQL still applies the old rules, but would not start with these.
      writeRuleFiles(folder, found);
      throw new HostError('RULES_NOT_APPLIED', `PostgreSQL rejects the rule file: ${error}`);
    }
    this.#postgresHba = wanted.postgresHba;
    this.#applied = null;
    await Promise.all([
      isApplied ? null : reloadPostgres(session),
      reloadPooler(this.#settings, new Set(entries), served),
    ]);
    if (leaving.length > 0) {
      await withAdminConsoles(this.#settings, (console) => endLogins(console, new Set(leaving)));
      writeRuleFiles(folder, wanted, ['poolerDatabases']);
      await reloadPooler(this.#settings, staying, new Set(entries));
    }
    this.#applied = wanted;
  }

  /** @param rejected by PostgreSQL's file; by default those that no change of members can express */
  #withBlocks(texts: RuleFileTexts, rejected?: readonly Block[]): RuleFileTexts {
    const blocks = this.#blocks.all();
    return withBlocked(texts, blocks, rejected ?? withinLargerNetworks(blocks, this.#branches));
  }

  /**
   * The limits of each branch's pooler entry. An older pooler refuses an entry with a limit that it does not
   * know.
   */
  async #pooledServer(): Promise<PooledServer> {
    const settings = this.#settings;
    this.#poolerVersion ??= oldest(await withAdminConsoles(settings, readPoolerVersion));
    // During a restart a branch may have clients at two PgBouncers, and each opens half of the connections.
    const poolers = readRestart(settings).phase === 'none' ? 1 : 2;
    return {
      socketDir: settings.POSTGRES_SOCKET_DIR,
      port: settings.POSTGRES_PORT,
      poolSize: Math.ceil(settings.BRANCH_POOL_SIZE / poolers),
      // The rest is for direct sessions.
      connections: Math.ceil((settings.BRANCH_CONNECTIONS * 2) / 3 / poolers),
      clients: countsClients(this.#poolerVersion) ? settings.POOLER_MAX_CLIENTS : null,
    };
  }
}

async function readStandbys(session: Session): Promise<StandbyLogin[]> {
  const { rows } = await session.query<StandbyLogin>('SELECT login, cidrs FROM standby ORDER BY login');
  return rows;
}

/**
 * The postmaster signals its sessions to reload and then reads the rules itself, both before it accepts the
 * next login. Once one session has reloaded, every new login is subject to the new rules.
 */
async function reloadPostgres(session: Session) {
  const { rows } = await session.query<{ requested: string }>(
    'SELECT clock_timestamp()::text AS requested, pg_reload_conf()',
  );
  await waitUntilApplied('PostgreSQL', async () => {
    const result = await session.query<{ reloaded: boolean }>(
      'SELECT pg_conf_load_time() >= $1::timestamptz AS reloaded',
      [rows[0]?.requested],
    );
    return result.rows[0]?.reloaded === true;
  });
}

/** PgBouncer reports success for RELOAD even when it still uses its old entries, so they are compared. */
const reloadPooler = (
  settings: AgentSettings,
  databases: ReadonlySet<string>,
  before: ReadonlySet<string> | null,
) => withAdminConsoles(settings, (console) => reloadAdminConsole(console, databases, before));

async function hbaError(session: Session): Promise<string | null> {
  const { rows } = await session.query<{ description: string }>(
    `SELECT format('%s line %s: %s', file_name, line_number, error) AS description
     FROM pg_hba_file_rules WHERE error IS NOT NULL LIMIT 1`,
  );
  return rows[0]?.description ?? null;
}

const differingFiles = (one: RuleFileTexts, other: RuleFileTexts) =>
  RULE_FILE_NAMES.filter((name) => one[name] !== other[name]);

const sameTexts = (one: RuleFileTexts, other: RuleFileTexts) => differingFiles(one, other).length === 0;
