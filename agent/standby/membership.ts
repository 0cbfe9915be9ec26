import { rm, writeFile } from 'node:fs/promises';
import { uptime } from 'node:os';
import type { SyncState } from '../../shared/protocol/durability.ts';
import type { Method, MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { HostMember, MemberState } from '../../shared/protocol/standby.ts';
import { waitForLogins } from '../access/enforce-access.ts';
import { closeRuleFiles } from '../access/rule-files.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import { networksOf } from '../moves/mover-login.ts';
import { withAdminConsoles } from '../pooler/admin-console.ts';
import {
  identifier,
  inDatabase,
  inTransaction,
  literal,
  type Pool,
  type Session,
} from '../postgres/connect.ts';
import { withHostLock, withLocks } from '../postgres/locks.ts';
import { endSessions } from '../postgres/sessions.ts';
import { dropUnusedRoles } from '../postgres/unused-roles.ts';
import { HostError } from '../process/host-error.ts';
import type { Log } from '../process/log.ts';
import { pollUntil, runLoop } from '../process/loops.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { PROMOTED } from '../transfer/follow-status.ts';
import { postmasterOf } from './base-copy.ts';
import { storeLease } from './primary-lease.ts';
import { Replica } from './replica.ts';
import { positionOf } from './replication.ts';
import type { Action } from './states.ts';
import {
  moveMember,
  noteMember,
  readMember,
  recordMember,
  type StoredMember,
  standbyFiles,
} from './stored-member.ts';
import { SynchronousCommits } from './synchronous-commits.ts';

/** Reactions of the running agent to a change of its role. A control tool has none. */
interface Hooks {
  /** Waits for the operations under way. @returns whether they have ended */
  settle: () => Promise<boolean>;
  /** The host was promoted: begins to serve. Resolves once its rules are in effect. */
  serve: () => Promise<void>;
  /** The host was fenced, and its servers are stopped: ends the agent, which begins again without its work. */
  fenced: () => void;
}

const NO_HOOKS: Hooks = { settle: async () => true, serve: async () => {}, fenced: () => {} };

/** Operations that every member serves. */
const OF_MEMBERS: readonly Method[] = ['host.describe', 'member.read', 'member.apply'];

const SYNCHRONISE_EVERY_MS = 1_000;
const SESSIONS_END = { within: 10_000 };
const PROMOTED_WITHIN_S = 60;
const STOPPED = { within: 10_000, every: 50 };
const DISABLED_WITHIN_MS = 3_000;

/** Clients and what acts for them; the agent's own sessions and the senders of WAL stay. */
const CLIENTS = `FROM pg_stat_activity WHERE backend_type = 'client backend' AND usename LIKE 'u\\_%'`;

interface MembershipOptions {
  settings: AgentSettings;
  postgres: Pool;
  rules: RuleSync;
  log: Log;
}

/**
 * Which member of a host and its standby this machine is, and what it does when that changes. A record is stored before it is
 * acted on, so a kill at any step leaves a host that is at least as closed as the record wants it.
 */
export class Membership {
  readonly #options: MembershipOptions;
  readonly #replica: Replica;
  readonly #commits: SynchronousCommits;
  #stored: StoredMember | null;
  #hooks = NO_HOOKS;
  #promotion: Promise<void> | null = null;

  constructor(options: MembershipOptions) {
    this.#options = options;
    this.#stored = readMember(options.settings);
    this.#replica = new Replica(options.settings, options.postgres);
    this.#commits = new SynchronousCommits(options.settings, options.postgres);
    options.rules.close(this.#isClosed());
  }

  #isClosed(): boolean {
    const stored = this.#stored;
    return stored !== null && (!isServing(stored) || stored.closing);
  }

  /** Null for a host that never had a standby. */
  get role(): HostMember['role'] | null {
    const stored = this.#stored;
    if (stored === null) return null;
    if (stored.role === 'fenced') return 'fenced';
    return isServing(stored) ? 'primary' : 'standby';
  }

  /** Returns whether this machine serves clients, or did until it was closed for its standby. */
  get isPrimary(): boolean {
    return this.#stored === null || this.#stored.role === 'primary';
  }

  /** For how long this primary serves after each renewal; null: it needs none. */
  get leaseSeconds(): number | null {
    return this.#stored?.lease_seconds ?? null;
  }

  /** How far the standby is behind, for the metrics; null on any other host. */
  get lag(): Pick<MemberState, 'lag_bytes' | 'lag_seconds'> | null {
    return this.role === 'standby' ? this.#replica.lag() : null;
  }

  /** Returns whether the standby of this host receives its WAL; null without a standby. */
  async hasStandby(): Promise<boolean | null> {
    if (this.role !== 'primary' || this.#stored?.standby_id == null) return null;
    const { rows } = await this.#options.postgres.query<{ active: boolean }>(
      'SELECT active FROM pg_replication_slots WHERE slot_name = $1',
      [loginOf(this.#stored.standby_id)],
    );
    return rows[0]?.active ?? false;
  }

  /** Brings commits of projects with the durability `sync` to wait for the standby, or not to. */
  async synchronise(): Promise<SyncState> {
    if (this.#stored?.role !== 'primary') return 'off';
    const standbyId = this.#stored.standby_id;
    return this.#commits.poll(standbyId && loginOf(standbyId));
  }

  /** Commits wait for no standby until one has caught up. */
  async releaseCommits(): Promise<void> {
    await this.#commits.poll(null);
  }

  /** @param onChange called when commits begin to wait for a standby that is away, or end to */
  runSynchronous(signal: AbortSignal, onChange: () => void): Promise<void> {
    let known: SyncState = 'off';
    const look = async () => {
      const state = await this.synchronise();
      if (state !== known) onChange();
      known = state;
    };
    const { log } = this.#options;
    return runLoop(look, { every: SYNCHRONISE_EVERY_MS, signal, log, failed: 'member.not_synchronised' });
  }

  attach(hooks: Hooks): void {
    this.#hooks = hooks;
  }

  /** @throws HostError HOST_UNAVAILABLE for an operation that only a primary serves */
  require(method: Method): void {
    if (!OF_MEMBERS.includes(method) && (!this.isPrimary || this.#isClosed()))
      throw new HostError(
        'HOST_UNAVAILABLE',
        this.role === 'primary'
          ? 'this host is closed, because its standby takes its place'
          : `this host is ${this.role === 'fenced' ? 'fenced' : 'a standby'}`,
      );
  }

  /** Finishes what a killed agent had begun. To be called at the start of the agent. */
  async resume(): Promise<void> {
    const { action } = await moveMember(this.#options.settings, 'start');
    if (action === 'stop') await this.#stopServers();
    if (action === 'promote') await this.#promote();
  }

  /** Follows the primary until `signal`, or until this host is promoted. */
  async run(signal: AbortSignal): Promise<void> {
    if (this.#stored?.role === 'standby' && this.#stored.primary)
      await this.#replica.run(this.#stored.primary, signal);
  }

  async read(): Promise<MemberState> {
    const stored = this.#stored;
    const isStandby = this.role === 'standby';
    return {
      generation: stored?.generation ?? 0,
      position: await (isStandby ? this.#replica.position() : this.#end()).catch(() => null),
      ...(isStandby ? this.#replica.lag() : { lag_bytes: null, lag_seconds: null }),
      survived_until: stored?.survived_until ?? null,
      unheard: isStandby ? this.#replica.unheard() : null,
      sync: await this.synchronise().catch(() => 'off' as const),
    };
  }

  /**
   * The end of the WAL of a primary, by a record that is written for it. The end alone can lie behind the header of a page that
   * has no record yet, which a standby does not reach.
   */
  async #end(): Promise<number> {
    const { rows } = await this.#options.postgres.query<{ lsn: string }>(
      'SELECT pg_log_standby_snapshot()::text AS lsn',
    );
    return positionOf(rows[0]?.lsn ?? '');
  }

  /**
   * Becomes what the record says. An older record is ignored, and the same one is finished.
   * @throws HostError when it cannot be done now; the record is stored nevertheless, and is applied again
   */
  async apply(record: HostMember): Promise<MemberState> {
    await this.#promotion?.catch(() => {});
    const { settings } = this.#options;
    const lease = uptime() + (record.lease_seconds ?? 0);
    const { before, stored, action } = await recordMember(settings, record, () =>
      storeLease(settings, lease),
    );
    this.#keep(stored);
    await this.#act(action, before);
    return this.read();
  }

  #keep(stored: StoredMember | null): void {
    const { log } = this.#options;
    if (stored !== null && JSON.stringify(this.#stored) !== JSON.stringify(stored)) {
      const { role, generation, closing } = stored;
      log('member.stored', { role, generation, closing });
    }
    this.#stored = stored;
  }

  async #act(action: Action, before: StoredMember | null): Promise<void> {
    const actions: Record<Action, () => Promise<void> | void> = {
      none: () => {},
      ignore: () => {},
      reject: () => {
        throw new HostError('HOST_UNAVAILABLE', 'the copy of the primary is not complete');
      },
      open: () => this.#open(),
      close: () => this.#close(),
      promote: () => this.#promote(),
      fence: () => this.#fence(before),
      stop: () => this.#stopServers(),
    };
    await actions[action]();
  }

  async #open(): Promise<void> {
    const { rules, postgres } = this.#options;
    if (rules.isClosed) {
      rules.close(false);
      await rules.sync();
      this.#options.log('member.opened');
    }
    if (this.#stored?.standby_id != null) return;
    await this.releaseCommits();
    await releaseStandby({ postgres, rules });
  }

  /** Admits no client and ends those that are there, so that the end of the WAL stays where it is for them. */
  async #close(): Promise<void> {
    const { rules, postgres, log } = this.#options;
    rules.close(true);
    await rules.sync();
    // Logins in progress have no name in the views yet, and were admitted by the former rules.
    await waitForLogins(postgres, null);
    await this.#endClients();
    await this.#disableSubscriptions();
    if (!(await this.#hooks.settle()))
      throw new HostError(
        'HOST_BUSY',
        'operations are under way, for instance a clone: try again when they have ended',
      );
    // The pooler, or one of those operations, may have opened another one meanwhile.
    await this.#endClients();
    log('member.closed');
  }

  async #endClients(): Promise<void> {
    if (!(await endSessions(this.#options.postgres, CLIENTS, [], SESSIONS_END)))
      throw new HostError('HOST_BUSY', 'sessions of clients do not end');
  }

  /**
   * Stops both servers for good. Their start asks for the role, so a service manager does not bring them back.
   * @param before an agent that has started as one of a fenced host stays
   */
  async #fence(before: StoredMember | null): Promise<void> {
    const { rules, log } = this.#options;
    rules.close(true);
    await this.#stopServers();
    if (before?.role === 'fenced') return;
    log('member.fenced');
    this.#hooks.fenced();
  }

  async #stopServers(): Promise<void> {
    const { settings } = this.#options;
    await closeRuleFiles(rulesFolder(settings));
    // The workers would confirm changes to a source that the new primary then misses.
    await Promise.race([
      this.#disableSubscriptions().catch(() => {}),
      new Promise((resolve) => setTimeout(resolve, DISABLED_WITHIN_MS).unref()),
    ]);
    await withAdminConsoles(settings, (console) => console.query('SHUTDOWN')).catch(() => {});
    // Sessions are ended without a wait: nothing that they write now would be anywhere else.
    for (const stop of ['SIGINT', 'SIGQUIT'] as const) {
      const pid = postmasterOf(settings.PGDATA_DIR);
      if (pid === null) return;
      try {
        process.kill(pid, stop);
      } catch {
        return;
      }
      if (await pollUntil(async () => postmasterOf(settings.PGDATA_DIR) === null, STOPPED)) return;
    }
    throw new HostError('INTERNAL', 'PostgreSQL does not stop');
  }

  /** Stops replication into every database that follows another one. */
  async #disableSubscriptions(then: (name: string) => string[] = () => []): Promise<void> {
    const { settings, postgres } = this.#options;
    const { rows } = await postgres.query<{ name: string; database: string }>(
      'SELECT subname AS name, datname AS database FROM pg_subscription JOIN pg_database ON pg_database.oid = subdbid',
    );
    for (const { name, database } of rows)
      await inDatabase(settings, database, async (session) => {
        for (const statement of [`ALTER SUBSCRIPTION ${identifier(name)} DISABLE`, ...then(name)])
          await session.query(statement);
      });
  }

  /** The gateway may ask for it while this agent finishes it at its start. */
  #promote(): Promise<void> {
    this.#promotion ??= this.#becomePrimary().finally(() => {
      this.#promotion = null;
    });
    return this.#promotion;
  }

  /** Each step may have been done by an agent that was killed. */
  async #becomePrimary(): Promise<void> {
    const { settings, postgres, rules, log } = this.#options;
    const stored = this.#stored;
    if (!stored) return;
    const begun = performance.now();
    const { rows } = await postgres.query<{ is_standby: boolean }>(
      'SELECT pg_is_in_recovery() AS is_standby',
    );
    if (rows[0]?.is_standby) {
      const promoted = await postgres.query<{ done: boolean }>(
        `SELECT pg_promote(true, ${PROMOTED_WITHIN_S}) AS done`,
      );
      if (!promoted.rows[0]?.done)
        throw new HostError('HOST_TIMEOUT', 'PostgreSQL has not ended its recovery');
    }
    const survived = stored.survived_until ?? (await this.#replica.survivedUntil())?.toISOString() ?? null;
    this.#replica.stop();
    await this.#abandonFollowing();
    // Only then, because the next start of PostgreSQL has workers for logical replication again.
    const files = standbyFiles(settings);
    await writeFile(files.settings, '', { mode: 0o600 });
    for (const path of [files.password, files.authority]) await rm(path, { force: true });
    // A record that closes this host again admits no client in between.
    rules.close(stored.closing);
    await releaseStandby({ postgres, rules: null });
    this.#keep(await noteMember(settings, { primary: null, survived_until: survived }));
    await this.#hooks.serve();
    this.#keep((await moveMember(settings, 'promotion ended')).stored);
    if (stored.closing) await this.#close();
    log('member.promoted', { duration_ms: Math.round(performance.now() - begun), survived_until: survived });
  }

  /**
   * A database that followed another one may lack changes that the source has had confirmed, so it does not follow any more,
   * and says so until it is copied again.
   */
  async #abandonFollowing(): Promise<void> {
    const { postgres } = this.#options;
    await this.#disableSubscriptions((name) => [
      `ALTER SUBSCRIPTION ${identifier(name)} SET (slot_name = NONE)`,
    ]);
    // A stopped subscription, or one whose copy was being made, counts too: its worker may have run at the former primary.
    await postgres.query("UPDATE following SET problem = $1 WHERE cutover IS DISTINCT FROM 'done'", [
      JSON.stringify(PROMOTED),
    ]);
  }
}

const isServing = ({ role }: StoredMember) => role === 'primary' || role === 'promoting';

/** Requirements for the admission of a standby. */
interface AdmittingHost {
  settings: AgentSettings;
  postgres: Pool;
  rules: RuleSync;
  member: Membership;
}

const loginOf = (standbyId: string) => `standby_${standbyId.replaceAll('-', '')}`;

/** A standby has one for its WAL, one for its position, and one for a copy. */
const STANDBY_CONNECTIONS = 6;

/**
 * Makes the login and the slot with which a standby copies and follows this host, and lets it connect from its addresses. The
 * slot is made again, because the copy begins where it does.
 * @throws HostError HOST_UPGRADE_REQUIRED without a bound for the WAL that a slot keeps; INVALID_CALL for an address without a
 *   network
 */
export async function admitStandby(
  { postgres, rules, member }: AdmittingHost,
  { standby_id, db_host, verifier, generation }: Params<'standby.admit'>,
): Promise<MethodResult<'standby.admit'>> {
  const { rows } = await postgres.query<{ bound: string }>(
    "SELECT setting AS bound FROM pg_settings WHERE name = 'max_slot_wal_keep_size'",
  );
  if (Number(rows[0]?.bound) < 0)
    throw new HostError(
      'HOST_UPGRADE_REQUIRED',
      'max_slot_wal_keep_size is not set, so an absent standby would fill the disk: run `branchgate-agent join` on the primary',
    );
  const cidrs = await networksOf([db_host]);
  // From now on its servers ask for their role before they start.
  await member.apply({
    role: 'primary',
    generation,
    closing: false,
    standby_id,
    lease_seconds: member.leaseSeconds,
  });
  const login = loginOf(standby_id);
  await member.releaseCommits();
  await releaseStandby({ postgres, rules: null });
  const makeLogin = (session: Session) =>
    inTransaction(session, async () => {
      // A tenant can have granted something to an earlier one, which then stays.
      const isThere = await session.query('SELECT FROM pg_roles WHERE rolname = $1', [login]);
      await session.query(
        `${isThere.rowCount ? 'ALTER' : 'CREATE'} ROLE ${login} LOGIN REPLICATION NOINHERIT
         CONNECTION LIMIT ${STANDBY_CONNECTIONS} PASSWORD ${literal(verifier)}`,
      );
      await session.query('INSERT INTO standby (login, standby_id, cidrs) VALUES ($1, $2, $3)', [
        ...[login, standby_id, cidrs],
      ]);
    });
  await withLocks(postgres, [], (session) => withHostLock(session, 'roles', () => makeLogin(session)));
  await postgres.query('SELECT pg_create_physical_replication_slot($1, true)', [login]);
  await rules.sync();
  return { login };
}

/**
 * Slot, rule and login of every standby, as far as they are there. A login that cannot be dropped, because a tenant has granted
 * something to it, is closed and holds up nothing.
 * @param rules null: the caller applies them
 */
async function releaseStandby({
  postgres,
  rules,
}: {
  postgres: Pool;
  rules: RuleSync | null;
}): Promise<void> {
  const slots = 'FROM pg_replication_slots WHERE slot_type = $1 AND slot_name LIKE $2';
  const named = ['physical', 'standby\\_%'];
  await postgres.query(`SELECT pg_terminate_backend(active_pid) ${slots} AND active`, named);
  const isDropped = async () => {
    await postgres.query(`SELECT pg_drop_replication_slot(slot_name) ${slots} AND NOT active`, named);
    return (await postgres.query(`SELECT ${slots}`, named)).rowCount === 0;
  };
  if (!(await pollUntil(isDropped, STOPPED)))
    throw new HostError('HOST_BUSY', 'the slot of the standby cannot be dropped while it is in use');
  const removed = await postgres.query('DELETE FROM standby');
  if (removed.rowCount) await rules?.sync();
  // Nobody can log in any more. The next search for unused roles tries again.
  await withLocks(postgres, [], dropUnusedRoles).catch(() => {});
}
