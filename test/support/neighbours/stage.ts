import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import type pg from 'pg';
import type { Role } from '../../../edge/database/column-types.ts';
import { BRANCH_ROLES, loginName } from '../../../shared/branch/login.ts';
import { Api, type BranchBody } from '../api.ts';
import { query } from '../database.ts';
import { attempt, HERE, type Target, targetOfUrl } from '../host/attempts.ts';
import type { Port } from '../host/host-project.ts';
import { connectOnHost, socketsOf } from '../host/host-session.ts';
import { IS_NIGHTLY } from '../nightly.ts';
import { dropProject } from '../records/jobs.ts';
import { type Stack, type StackOptions, startStack, UNLIMITED } from '../stack/stack.ts';
import type { Attack, AttackerSide, Revocation, Volume } from './attack.ts';
import type { Order } from './attacker-process.ts';
import { ADMITTED_STRANGER } from './attacks/connections.ts';
import { ATTACKS, type AttackName } from './attacks.ts';
import { backendsOf, signalBackends } from './backends.ts';
import { firewallTables, removeTables, WITH_FIREWALL } from './firewall.ts';
import { watchGrowth } from './growth.ts';
import { reasonOf, TRANSACTION_WITHIN_MS, Victim, type VictimReport } from './victim.ts';

/** Milliseconds: how long an attack runs, and how long the victim is measured before. */
const DURATION_MS = IS_NIGHTLY ? 20_000 : 7_000;
const IDLE_MS = IS_NIGHTLY ? 10_000 : 2_000;
/** An attack is at its full strength by then. */
const STARTED_MS = 1_500;
/**
 * Within this time of the attacker's end its sessions have to end too: twice the server's check for lost
 * clients.
 */
const GONE_WITHIN_MS = 20_000;
const WELL_WITHIN_MS = 70_000;
const REMOVED_WITHIN_MS = 30_000;
/** What takes so much longer than without an attack is the attack's doing, and what takes less is the machine's. */
export const TIMES_IDLE = 5;
/** Longer than it may take, so that a failure says by how much. */
const REVOCATION_GIVEN_UP_MS = 30_000;
/** Attempts of the attacker are limited too: a poll must not be what blocks it. */
const ATTEMPT_EVERY_MS = 1_000;
const POLL_MS = 50;

/** Bounds that are lower than those of a real host, so that little is written before they apply. */
const TIGHT = {
  // The default, which an attack by the API uses up.
  LIMIT_WRITES_PER_MINUTE: '200',
  // By default any admitted address closes a branch by 50 wrong passwords, as the specification has it.
  CONNECTION_ATTEMPTS_SCOPE: 'address',
  TEMP_FILE_LIMIT_MB: '100',
  TRANSACTION_SECONDS: '5',
};

export interface StageOptions extends StackOptions {
  /** Whether the rules are published to the packet filter too. */
  firewall?: boolean;
  /** Runs once the stack is up, before the victim starts. */
  prepare?: (stack: Stack) => Promise<void>;
}

/** The victim without an attack. */
export interface Idle extends VictimReport {
  /** Of another project's passwords, by night; the reason instead when it failed. */
  rotationMs: number | string | null;
}

export interface Outcome {
  /** By night the slower of two: before the attack, and when it is over. Others use the machine too. */
  idle: Idle;
  during: VictimReport;
  branchMs: number | string;
  rotationMs: number | string;
  /**
   * Milliseconds from the request until the attacker had no session and no login; the reason instead when it
   * failed.
   */
  revokedMs: number | string | null;
  /** Why the project's record says that it is blocked, before any revocation. */
  blockedFor: string | null;
  /** Whether the attacker had no session left when its time was over. */
  isCutOff: boolean;
  /** Milliseconds after its process ended until its last session had ended; null when that did not happen. */
  goneMs: number | null;
  growth: Record<Volume, number>;
  /** What the attacker achieved. */
  counts: Record<string, number>;
}

/** The tenant that attacks. */
interface AttackingTenant {
  side: AttackerSide;
  /** The address that its rule admits. */
  from: string;
  branchIds: string[];
  revocations: Record<Revocation, () => Promise<{ status: number }>>;
  /** Why the project's record says that it is blocked. */
  blockedFor: () => Promise<string | null>;
  remove: () => Promise<void>;
}

interface Attacking {
  name: AttackName;
  attacker: AttackingTenant;
  durationMs: number;
  revocation: Revocation | null;
}

/** A stack with a victim, on which attacks run one after another. */
export class Stage {
  readonly stack: Stack;
  readonly victim: Victim;
  readonly #postgres: pg.Client;
  readonly #console: pg.Client;
  readonly #otherTables: string[] | null;
  readonly #attackers = new Set<ChildProcess>();

  private constructor(stack: Stack, victim: Victim, sessions: pg.Client[], otherTables: string[] | null) {
    this.stack = stack;
    this.victim = victim;
    [this.#postgres, this.#console] = sessions as [pg.Client, pg.Client];
    this.#otherTables = otherTables;
    process.once('exit', () => this.#endAttackers());
  }

  static async start(options: StageOptions = {}): Promise<Stage> {
    const { firewall = false, prepare, env, ...others } = options;
    const tables = firewall ? firewallTables() : null;
    const stack = await startStack({
      ...others,
      env: { ...UNLIMITED, ...TIGHT, ...(firewall && WITH_FIREWALL), ...env },
    });
    try {
      await prepare?.(stack);
      const api = new Api(stack.url, await tokenOf(stack, 'victim'));
      const victim = await Victim.start(api, ['127.0.0.1/32', `${ADMITTED_STRANGER}/32`]);
      const { postgres, pooler } = socketsOf(stack.state);
      const sessions = [
        await connectOnHost(postgres, 'branchgate'),
        await connectOnHost(pooler, 'pgbouncer'),
      ];
      return new Stage(stack, victim, sessions, tables);
    } catch (error) {
      await stack.stop();
      throw error;
    }
  }

  async stop(): Promise<void> {
    this.#endAttackers();
    await this.victim.stop();
    // They fail when a server was restarted.
    await Promise.all([this.#postgres, this.#console].map((session) => session.end().catch(() => {})));
    try {
      await this.stack.stop();
    } finally {
      if (this.#otherTables) removeTables(this.#otherTables);
    }
  }

  /**
   * Runs the attack next to the victim. The attacker's process and sessions are gone afterwards, whatever
   * happens.
   */
  async run(name: AttackName, revocation = revocationOf(name)): Promise<Outcome> {
    const attack: Attack = ATTACKS[name];
    if (!(await this.victim.isWell(WELL_WITHIN_MS)))
      throw new Error('the victim does not recover from the attack before');
    const durationMs = attack.durationMs ?? DURATION_MS;
    const attacker = await this.#makeAttacker(name, attack, durationMs);
    const before = await this.#idle();
    const start = performance.now();
    const outcome = await this.#attack({ name, attacker, durationMs, revocation });
    let idle = before;
    if (IS_NIGHTLY) {
      if (!(await this.victim.isWell(WELL_WITHIN_MS))) throw new Error('the victim does not recover');
      idle = slowerOf(before, await this.#idle());
    }
    const during = await this.victim.report(
      start,
      start + durationMs,
      Math.max(TRANSACTION_WITHIN_MS, TIMES_IDLE * idle.slowest),
    );
    return { ...outcome, idle, during };
  }

  async #idle(): Promise<Idle> {
    const start = performance.now();
    const calls = IS_NIGHTLY ? this.victim.branchAndRotate() : null;
    const report = await this.victim.report(start, start + IDLE_MS);
    return { ...report, rotationMs: (await calls)?.rotationMs ?? null };
  }

  async #attack({
    name,
    attacker,
    durationMs,
    revocation,
  }: Attacking): Promise<Omit<Outcome, 'idle' | 'during'>> {
    const endGrowth = await watchGrowth(this.stack.state, this.#postgres);
    const start = performance.now();
    const { child, counts } = this.#launch({ name, side: attacker.side });
    try {
      await sleep(Math.min(STARTED_MS, durationMs / 2));
      const calls = this.victim.branchAndRotate();
      await sleep(Math.max(0, start + durationMs / 2 - performance.now()));
      const blockedFor = await attacker.blockedFor();
      const revokedMs = revocation && (await this.#revoke(revocation, attacker));
      await sleep(Math.max(0, start + durationMs - performance.now()));
      const blockedLater = blockedFor ?? (await attacker.blockedFor());
      const isCutOff = this.#backends(attacker).length === 0;
      const ended = await counts;
      endProcess(child);
      const goneMs = await this.#untilGone(attacker);
      return {
        ...(await calls),
        revokedMs,
        blockedFor: blockedLater,
        isCutOff,
        goneMs,
        growth: await endGrowth(),
        counts: ended,
      };
    } finally {
      endProcess(child);
      await endGrowth();
      signalBackends(this.#backends(attacker));
      await attacker.remove();
    }
  }

  /** What one tenant has when its attack begins. */
  async #makeAttacker(name: AttackName, attack: Attack, durationMs: number): Promise<AttackingTenant> {
    const token = await tokenOf(this.stack, `attacker-${name.replaceAll(' ', '-')}`, attack.member);
    const api = new Api(this.stack.url, token);
    const from = attack.from ?? HERE;
    const makeProject = async (name: string) => {
      const { quotaGib } = attack;
      const quota = quotaGib === undefined ? {} : { storage_quota_gib: quotaGib };
      const project = await api.project(name, quota);
      const path = `/api/v1/projects/${project.id}`;
      const rule = await api.allow(project.id, `${from}/32`);
      if (attack.setUp) await query((await api.credentials(project.id, 'main')).direct_url, attack.setUp);
      const branches = await Promise.all(
        Array.from({ length: attack.branches ?? 0 }, async (_, n) => {
          // Without an address of its creator, so that the project's rule is the only one.
          const { status, body } = await api.post<BranchBody>(`${path}/branches`, {
            branch_name: `branch-${n}`,
          });
          if (status !== 201) throw new Error(`branch: ${status} ${body.error}`);
          return body;
        }),
      );
      return { id: project.id, path, rule, branches: [project.main_branch, ...branches].map(({ id }) => id) };
    };
    const first = await makeProject('Attacker');
    const projects = [first];
    while (projects.length < (attack.projects ?? 1))
      projects.push(await makeProject(`Attacker ${projects.length + 1}`));
    const target = (url: string, password?: string): Target => ({
      ...targetOfUrl(url),
      ...(password !== undefined && { password }),
    });
    const branchTargets = await Promise.all(
      projects.flatMap(({ id, branches }) =>
        branches.map(async (branch) => {
          const role = attack.login === 'read_only' ? '?role=read_only' : '';
          const own = await api.credentials(id, branch, role);
          return { direct: target(own.direct_url), pooled: target(own.database_url) };
        }),
      ),
    );
    const side: AttackerSide = {
      targets: branchTargets[0] as Record<Port, Target>,
      branchTargets,
      victim: {
        direct: target(this.victim.urls.direct, 'a guess'),
        pooled: target(this.victim.urls.pooled, 'a guess'),
      },
      api: {
        url: this.stack.url,
        token,
        projects: projects.map(({ id, branches: [, ...branches] }) => ({ id, branches })),
      },
      durationMs,
    };
    const revocations: Record<Revocation, () => Promise<{ status: number }>> = {
      rule: () => api.delete(`${first.path}/network-rules/${first.rule.id}`),
      rotation: async () => {
        const paths = first.branches.map((id) => `${first.path}/branches/${id}/credentials/rotate`);
        const all = await Promise.all(paths.map((each) => api.post(each, undefined)));
        return all.find(({ status }) => status >= 400) ?? { status: 200 };
      },
      deletion: () => api.delete(first.path),
    };
    return {
      side,
      from,
      branchIds: projects.flatMap(({ branches }) => branches),
      revocations,
      blockedFor: async () => {
        const { body } = await api.get<{ blocked?: { reason: string } | null }>(first.path);
        return body.blocked?.reason ?? null;
      },
      remove: async () => {
        // What it leaves to be done would delay the victim when it is measured afterwards.
        const gone = Promise.all(projects.map(({ id }) => dropProject(api, id).catch(() => {})));
        await Promise.race([gone, sleep(REMOVED_WITHIN_MS, null, { ref: false })]);
      },
    };
  }

  #launch(order: Order): { child: ChildProcess; counts: Promise<Record<string, number>> } {
    const child = spawn(process.execPath, [join(import.meta.dirname, 'attacker-process.ts')], {
      detached: true,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    });
    this.#attackers.add(child);
    child.once('exit', () => this.#attackers.delete(child));
    const said = once(child, 'message').then(([counts]) => counts as Record<string, number>);
    const ended = once(child, 'exit').then(() => ({ 'ended without a report': 1 }));
    child.send(order);
    const counts = Promise.race([
      said,
      ended,
      sleep(order.side.durationMs + 10_000, { 'no report': 1 }, { ref: false }),
    ]);
    // Nobody waits for it when the run fails before.
    counts.catch(() => {});
    return { child, counts };
  }

  #endAttackers(): void {
    for (const child of this.#attackers) endProcess(child);
  }

  #backends({ branchIds }: AttackingTenant) {
    return backendsOf(this.stack.state.pids.postgres ?? 0, branchIds);
  }

  async #revoke(kind: Revocation, attacker: AttackingTenant): Promise<number | string> {
    const start = performance.now();
    try {
      const { status } = await Promise.race([
        attacker.revocations[kind](),
        sleep(REVOCATION_GIVEN_UP_MS, { status: 0 }, { ref: false }),
      ]);
      if (status === 0) return `${kind}: no response`;
      if (status >= 400) return `${kind}: status ${status}`;
    } catch (error) {
      return `${kind}: ${reasonOf(error)}`;
    }
    const called = Math.round(performance.now() - start);
    for (; performance.now() < start + REVOCATION_GIVEN_UP_MS; await sleep(POLL_MS)) {
      if (this.#backends(attacker).length > 0 || (await this.#pooledClients(attacker.branchIds)) > 0)
        continue;
      // Measured before the attempts, which wait for a server that is busy.
      const ended = performance.now() - start;
      const outcomes = await Promise.all(
        Object.values(attacker.side.targets).map((target) => outcomeOf(target, attacker.from)),
      );
      if (!outcomes.includes('in')) return ended;
      await sleep(ATTEMPT_EVERY_MS);
    }
    return `${kind}: responded after ${called} ms, not in effect after ${REVOCATION_GIVEN_UP_MS} ms`;
  }

  async #pooledClients(branchIds: string[]): Promise<number> {
    const logins = branchIds.flatMap((id) => BRANCH_ROLES.map((role) => loginName(id, role)));
    const { rows } = await this.#console.query<{ user: string; state: string }>('SHOW CLIENTS');
    return rows.filter(({ user }) => logins.includes(user)).length;
  }

  async #untilGone(attacker: AttackingTenant): Promise<number | null> {
    const start = performance.now();
    for (; performance.now() < start + GONE_WITHIN_MS; await sleep(POLL_MS)) {
      if (this.#backends(attacker).length === 0) return performance.now() - start;
    }
    return null;
  }
}

const revocationOf = (name: AttackName): Revocation | null => ATTACKS[name].revocation;

/** Each figure that an attack is compared with is that of the slower one. */
const slowerOf = (one: Idle, other: Idle): Idle => ({
  ...one,
  p99: Math.max(one.p99, other.p99),
  slowest: Math.max(one.slowest, other.slowest),
  rotationMs:
    typeof one.rotationMs === 'number' && typeof other.rotationMs === 'number'
      ? Math.max(one.rotationMs, other.rotationMs)
      : null,
  failures: { ...one.failures, ...other.failures },
});

/** A user of that tenant alone: a newer token of another tenant would end the older one. */
const tokenOf = (stack: Stack, tenant: string, role: Role = 'owner') =>
  stack.token({ tenant, email: `${role}@${tenant}.example`, role });

/** An attempt that fails in a way of its own is no login either. */
const outcomeOf = (target: Target, from: string) =>
  Promise.race([
    attempt(target, from).catch((error) => reasonOf(error)),
    sleep(5_000, 'timeout', { ref: false }),
  ]);

/** SIGKILL to its process group. */
function endProcess({ pid }: ChildProcess): void {
  if (pid === undefined) return;
  try {
    process.kill(-pid, 'SIGKILL');
  } catch {
    // It has ended.
  }
}
