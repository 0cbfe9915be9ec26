import { LIFESPANS } from '../../shared/branch/lifespan.ts';
import { dependenciesOf } from './dependencies.ts';
import type { Random } from './random.ts';
import { type Actor, type Form, HOME, MAIN, type Operation, type OperationKind } from './schedule.ts';

type Planned = Exclude<OperationKind, 'make_table'>;

/** Weights of the kinds, where a target exists. */
const KINDS: Record<Planned, number> = {
  create_branch: 11,
  create_batch: 3,
  lease_branch: 2,
  renew_lease: 2,
  write_by_sql: 9,
  write_by_api: 4,
  delete_branch: 4,
  restore_branch: 4,
  take_snapshot: 4,
  branch_snapshot: 10,
  reset_to_parent: 3,
  reset_to_snapshot: 3,
  protect_branch: 2,
  add_rule: 3,
  remove_rule: 3,
  rotate: 3,
  set_lifespan: 2,
  delete_by_api: 2,
  create_project: 2,
  delete_project: 1,
  move_tenant: 1,
  move_project: 0,
  set_durability: 0,
};

const KINDS_OF_STANDBY: Record<Planned, number> = { ...KINDS, write_by_sql: 14, set_durability: 4 };

/** With two database hosts. A project with snapshots often stays. */
const KINDS_OF_TWO_HOSTS: Record<Planned, number> = {
  ...KINDS,
  move_project: 18,
  write_by_sql: 14,
  take_snapshot: 2,
  branch_snapshot: 4,
};

/** A group is complete after this many draws, even if some did not fit. */
const DRAWS_MAX = 8;

/** In addition to `main`: a project may have ten at a time (specification 8), and deletions may be late. */
const BRANCHES_MAX = 9;
const BATCH_MAX = 3;
const SPARES_MAX = 3;
/** About what a host takes to begin its spares. */
const REST_MAX_MS = 2_000;
/** Without writes a host makes a standing snapshot after two seconds, which it counts from its first look a second later. */
const QUIET_MS = { least: 3_100, most: 4_000 };
const SERIES_PERCENT = 50;

/** The state of a project if every operation succeeded: rows by branch, and rules. */
interface Expected {
  branches: Map<string, Set<number>>;
  parents: Map<string, string>;
  /** Deleted branches, and the rows that they had. */
  deleted: Map<string, Set<number>>;
  snapshots: Map<string, Set<number>>;
  /** Branches that only their renewal uses. */
  leased: string[];
  rules: Set<string>;
  /** Number of planned branches, including deleted ones. */
  planned: number;
}

/** Plans the operations of one user, group by group. */
class Planner {
  readonly #random: Random;
  /** The run then waits for their ends. */
  readonly #hasLeases: boolean;
  readonly #kinds: Record<Planned, number>;
  readonly #projects = new Map<string, Expected>();
  readonly #addresses = new Set<string>();
  #nameCount = 0;

  constructor(random: Random, hasLeases: boolean, kinds: Record<Planned, number>) {
    this.#random = random;
    this.#hasLeases = hasLeases;
    this.#kinds = kinds;
  }

  plan(least: number, most: number, hasSeries: boolean): Operation[][] {
    const groups = [...this.#furnish('p0'), ...(hasSeries ? this.#series('p0') : [])];
    const count = this.#random.int(least, most);
    for (let n = 0; n < count; n++) {
      groups.push(this.#group());
      groups.push(...this.#restoreAccess());
    }
    return groups;
  }

  /** Creates a project with a table that clients can connect to. */
  #furnish(project: string): Operation[][] {
    const steps: Operation[] = [
      { kind: 'create_project', project, persists: true, copies: this.#copies() },
      { kind: 'add_rule', project, rule: HOME, cidr: '127.0.0.1/32', persists: true, copies: 1 },
      { kind: 'make_table', project, persists: true, copies: 1 },
    ];
    for (const step of steps) this.#expect(step);
    return steps.map((step) => [step]);
  }

  /** Branches of an unchanged `main`: the second one gets it a standing snapshot, and the last one meets a write. */
  #series(project: string): Operation[][] {
    const write = (): Operation => {
      const manner = { persists: true, copies: 1 };
      return { kind: 'write_by_sql', project, branch: MAIN, row: 1, value: this.#name('v'), ...manner };
    };
    const create = (rest_ms = 0): Operation => {
      const manner = { persists: true, copies: this.#copies() };
      return {
        kind: 'create_branch',
        project,
        branch: this.#name('branch-'),
        source: MAIN,
        rest_ms,
        ...manner,
      };
    };
    const rest = this.#random.int(QUIET_MS.least, QUIET_MS.most);
    const groups = [[write()], [create()], [create(rest)], [create()], [create(), write()], [create()]];
    const expected = this.#projects.get(project) as Expected;
    expected.planned += groups.length - 1;
    for (const step of groups.flat()) this.#expect(step);
    return groups;
  }

  /** Adds the simulator's own rule again where it was removed. */
  #restoreAccess(): Operation[][] {
    const blocked = [...this.#projects].filter(([, { rules }]) => !rules.has(HOME));
    return blocked.map(([project, { rules }]) => {
      rules.add(HOME);
      return [{ kind: 'add_rule', project, rule: HOME, cidr: '127.0.0.1/32', persists: true, copies: 1 }];
    });
  }

  #group(): Operation[] {
    const group: Operation[] = [];
    const taken = { needs: new Set<string>(), ends: new Set<string>() };
    const wanted = this.#random.int(1, 4);
    for (let drawn = 0; drawn < DRAWS_MAX && group.length < wanted; drawn++) {
      const operation = this.#operation(this.#random.weighted(this.#kinds));
      if (!operation) continue;
      const { needs, ends } = dependenciesOf(operation);
      const conflicts =
        needs.some((key) => taken.ends.has(key)) ||
        ends.some((key) => taken.ends.has(key) || taken.needs.has(key));
      if (conflicts) continue;
      for (const key of needs) taken.needs.add(key);
      for (const key of ends) taken.ends.add(key);
      group.push(operation);
    }
    for (const operation of group) this.#expect(operation);
    return group;
  }

  #copies(): number {
    return this.#random.chance(25) ? 2 : 1;
  }

  /** @returns null without a target */
  #operation(kind: Planned): Operation | null {
    const random = this.#random;
    const manner = { persists: random.chance(75), copies: this.#copies() };
    if (kind === 'move_tenant') return { kind, ...manner, copies: 1, persists: true, to: this.#name('t') };
    if (kind === 'create_project') return { kind, ...manner, project: this.#name('p') };
    if (this.#projects.size === 0) return null;
    const project = random.pick([...this.#projects.keys()]);
    const expected = this.#projects.get(project) as Expected;
    const { branches, rules } = expected;
    if (kind === 'delete_project') return { kind, project, ...manner, copies: 1 };
    if (kind === 'set_durability')
      return { kind, project, ...manner, copies: 1, durability: random.pick(['async', 'sync'] as const) };
    // Only its end says whether the project has moved, so its client stays.
    if (kind === 'move_project')
      return { kind, project, persists: true, copies: 1, drops_snapshots: random.chance(80) };
    if (kind === 'add_rule') {
      return { kind, project, rule: this.#name('r'), cidr: this.#address(), ...manner };
    }
    if (kind === 'remove_rule') {
      if (rules.size === 0) return null;
      return { kind, project, rule: random.pick([...rules]), ...manner, copies: 1 };
    }
    const branch = random.pick([...branches.keys()]);
    const rows = [...(branches.get(branch) ?? [])];
    const value = this.#name('v');
    switch (kind) {
      case 'create_branch':
        if (expected.planned === BRANCHES_MAX) return null;
        expected.planned += 1;
        return { kind, project, branch: this.#name('branch-'), source: branch, rest_ms: 0, ...manner };
      case 'create_batch': {
        if (expected.planned + BATCH_MAX > BRANCHES_MAX) return null;
        const count = random.int(2, BATCH_MAX);
        expected.planned += count;
        const names = Array.from({ length: count }, () => this.#name('branch-'));
        return { kind, project, source: branch, branches: names, ...manner };
      }
      case 'lease_branch':
        if (!this.#hasLeases) return null;
        return { kind, project, branch: this.#name('lease-'), source: branch, ...manner };
      case 'renew_lease':
        if (expected.leased.length === 0) return null;
        return { kind, project, branch: random.pick(expected.leased), ...manner, copies: 1 };
      case 'rotate':
        return { kind, project, branch, ...manner };
      case 'write_by_sql': {
        if (!this.#isFurnished(project)) return null;
        const row = rows.length > 0 && random.chance(40) ? random.pick(rows) : rows.length + 1;
        return { kind, project, branch, row, value, ...manner, copies: 1 };
      }
      case 'write_by_api':
        return rows.length > 0
          ? { kind, project, branch, row: random.pick(rows), value, ...manner, copies: 1 }
          : null;
      case 'delete_by_api':
        return rows.length > 0
          ? { kind, project, branch, row: random.pick(rows), ...manner, copies: 1 }
          : null;
      case 'delete_branch':
        return branch === MAIN ? null : { kind, project, branch, ...manner, copies: 1 };
      case 'restore_branch':
        return expected.deleted.size === 0
          ? null
          : { kind, project, branch: random.pick([...expected.deleted.keys()]), ...manner, copies: 1 };
      case 'take_snapshot':
        return {
          kind,
          project,
          branch,
          snapshot: this.#name('s'),
          ...manner,
          spares: random.chance(70) ? random.int(1, SPARES_MAX) : 0,
        };
      case 'branch_snapshot': {
        const count = random.chance(40) ? random.int(2, BATCH_MAX) : 1;
        if (expected.snapshots.size === 0 || expected.planned + count > BRANCHES_MAX) return null;
        expected.planned += count;
        return {
          kind,
          project,
          snapshot: random.pick([...expected.snapshots.keys()]),
          ...manner,
          branches: Array.from({ length: count }, () => this.#name('branch-')),
          rest_ms: random.chance(60) ? random.int(0, REST_MAX_MS) : 0,
        };
      }
      case 'reset_to_parent': {
        const source = expected.parents.get(branch);
        const confirms = random.chance(70);
        // A reset without a response could still replace what is written after it.
        return source === undefined || !branches.has(source)
          ? null
          : { kind, project, branch, source, confirms, persists: true, copies: 1 };
      }
      case 'reset_to_snapshot': {
        if (expected.snapshots.size === 0) return null;
        const snapshot = random.pick([...expected.snapshots.keys()]);
        return { kind, project, branch, snapshot, confirms: random.chance(70), persists: true, copies: 1 };
      }
      case 'protect_branch':
        return branch === MAIN
          ? null
          : { kind, project, branch, protect: random.chance(60), ...manner, copies: 1 };
      case 'set_lifespan':
        return branch === MAIN
          ? null
          : { kind, project, branch, lifespan: random.pick(LIFESPANS), ...manner, copies: 1 };
    }
  }

  #isFurnished = (project: string) => project === 'p0';

  /** One that no other rule of this user has: a project has one rule of a network. */
  #address(): string {
    const address = `203.0.113.${this.#random.int(0, 255)}/32`;
    if (this.#addresses.has(address)) return this.#address();
    this.#addresses.add(address);
    return address;
  }

  #name(prefix: string): string {
    this.#nameCount += 1;
    return `${prefix}${this.#nameCount}`;
  }

  #expect(operation: Operation): void {
    if (operation.kind === 'move_tenant') return;
    if (operation.kind === 'create_project') {
      this.#projects.set(operation.project, {
        branches: new Map([[MAIN, new Set()]]),
        rules: new Set(operation.project === 'p0' ? [] : [HOME]),
        leased: [],
        parents: new Map(),
        deleted: new Map(),
        snapshots: new Map(),
        planned: 0,
      });
      return;
    }
    const project = this.#projects.get(operation.project);
    if (!project) return;
    switch (operation.kind) {
      case 'delete_project':
        this.#projects.delete(operation.project);
        return;
      case 'move_project':
        if (!operation.drops_snapshots) return;
        project.snapshots.clear();
        project.deleted.clear();
        return;
      case 'create_branch':
        project.branches.set(operation.branch, new Set(project.branches.get(operation.source)));
        project.parents.set(operation.branch, operation.source);
        return;
      case 'create_batch':
        for (const branch of operation.branches)
          project.branches.set(branch, new Set(project.branches.get(operation.source)));
        return;
      case 'branch_snapshot':
        for (const branch of operation.branches)
          project.branches.set(branch, new Set(project.snapshots.get(operation.snapshot)));
        return;
      case 'lease_branch':
        project.leased.push(operation.branch);
        return;
      case 'delete_branch':
        project.deleted.set(operation.branch, new Set(project.branches.get(operation.branch)));
        project.branches.delete(operation.branch);
        return;
      case 'restore_branch':
        project.branches.set(operation.branch, new Set(project.deleted.get(operation.branch)));
        project.deleted.delete(operation.branch);
        project.parents.delete(operation.branch);
        return;
      case 'take_snapshot':
        project.snapshots.set(operation.snapshot, new Set(project.branches.get(operation.branch)));
        return;
      case 'reset_to_parent':
        project.branches.set(operation.branch, new Set(project.branches.get(operation.source)));
        return;
      case 'reset_to_snapshot':
        project.branches.set(operation.branch, new Set(project.snapshots.get(operation.snapshot)));
        return;
      case 'add_rule':
        project.rules.add(operation.rule);
        return;
      case 'remove_rule':
        project.rules.delete(operation.rule);
        return;
      case 'write_by_sql':
        project.branches.get(operation.branch)?.add(operation.row);
        return;
    }
  }
}

/** The number of users, and the range of groups of operations per user. */
export interface Work {
  actors: number;
  groups: [least: number, most: number];
  /** Whether some users make several branches of an unchanged `main`, which takes seconds. */
  hasSeries: boolean;
}

/**
 * Permitted clock offset of tokens: `nbf` up to 30 s ahead (specification 2.8), behind by up to a token's
 * lifetime.
 */
const TOKEN_AHEAD_S = { least: -600, most: 25 };

/** Schedules with leases, which take half a minute longer. */
const LEASES_PERCENT = 20;

/** Plans users, each in a separate tenant, on a stage of this form. */
export function planActors(
  random: Random,
  { actors, groups, hasSeries }: Work,
  { hosts, standby }: Form,
): Actor[] {
  const kinds = standby ? KINDS_OF_STANDBY : hosts > 1 ? KINDS_OF_TWO_HOSTS : KINDS;
  const hasLeases = random.fork('leases').chance(LEASES_PERCENT);
  return Array.from({ length: actors }, (_, n) => ({
    name: `u${n}`,
    tenant: `t${n}`,
    ahead_s: planClock(random.fork(`clock ${n}`)),
    groups: new Planner(random.fork(`actor ${n}`), hasLeases, kinds).plan(
      ...groups,
      hasSeries && hosts === 1 && random.fork(`series ${n}`).chance(SERIES_PERCENT),
    ),
  }));
}

const planClock = (random: Random): number =>
  random.chance(30) ? random.int(TOKEN_AHEAD_S.least, TOKEN_AHEAD_S.most) : 0;
