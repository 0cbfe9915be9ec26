import { setTimeout as sleep } from 'node:timers/promises';
import type { RuleSync } from '../access/sync-rules.ts';
import { LogFollower } from '../logs/follow-log.ts';
import type { Pool } from '../postgres/connect.ts';
import { type AgentSettings, rulesFolder } from '../settings.ts';
import { Admission } from './admission.ts';
import { AttemptWindows } from './attempt-windows.ts';
import { readBlockedBranches, writeBlockedBranches } from './blocked-branches.ts';
import { CONNECTION_LOGS, type ConnectionLog } from './connection-logs.ts';

/** Spec section 8: attempts a minute and branch, over both ports. */
const ATTEMPTS = 50;
const WINDOW_MS = 60_000;
/** How late a branch opens again at most, and how soon what failed is tried again. */
const LOOK_EVERY_MS = 250;
const TRY_AGAIN_AFTER_MS = 1_000;

type Log = (event: string, fields?: Record<string, unknown>) => void;

interface Watched {
  settings: AgentSettings;
  postgres: Pool;
  rules: RuleSync;
}

/**
 * Counts the attempts that both servers log, and has the rules refuse a branch from its last allowed one on until
 * its window ends. Which branches are shut is in the agent's tables: a control tool that publishes keeps them
 * shut, and the agent's next process opens them in time. Counts below the limit die with the process.
 */
export class AttemptWatch {
  readonly #host: Watched;
  readonly #log: Log;
  readonly #windows: AttemptWindows;
  /** Branches that the servers are known to refuse; unknown at first. */
  #shut: ReadonlySet<string> | null = null;
  #refusing: Promise<void> = Promise.resolve();
  #enforcing: Promise<void> | null = null;
  #tryAgainAt = 0;
  readonly #troubles = new Map<string, string>();

  /** @param windowMs given by tests alone */
  constructor(host: Watched, log: Log, windowMs = WINDOW_MS) {
    this.#host = host;
    this.#log = log;
    this.#windows = new AttemptWindows(ATTEMPTS, windowMs);
  }

  /** Watches until `signal`. Never throws. */
  async keepWatching(signal: AbortSignal): Promise<void> {
    const following = CONNECTION_LOGS.map((log) => this.#follow(log, signal));
    while (!signal.aborted) {
      await this.#enforce();
      await sleep(LOOK_EVERY_MS, undefined, { signal }).catch(() => {});
    }
    await Promise.all(following);
    await this.#enforcing;
  }

  #follow(
    { name, locate, marks, read, tellsOfOutsiders }: ConnectionLog,
    signal: AbortSignal,
  ): Promise<void> {
    const { settings } = this.#host;
    const admission = new Admission(rulesFolder(settings));
    const follower = new LogFollower({
      locate: () => locate(settings),
      marks,
      onLines: (lines) => {
        if (tellsOfOutsiders) admission.refresh();
        for (const attempt of lines.map(read)) {
          if (attempt && !(tellsOfOutsiders && !admission.admits(attempt)))
            this.#count(branchOf(attempt.login));
        }
      },
    });
    return follower.follow(signal, (trouble) => this.#note(`log of ${name}`, trouble));
  }

  #count(branchId: string) {
    if (!this.#windows.count(branchId, performance.now())) return;
    // Ahead of a change that is under way for another branch.
    this.#refuse().catch(() => {});
    void this.#enforce();
  }

  #refuse(): Promise<void> {
    const refuse = () => this.#host.rules.refuse(new Set(this.#windows.atLimit(performance.now()).keys()));
    this.#refusing = this.#refusing.then(refuse, refuse);
    return this.#refusing;
  }

  /** Brings the servers to refuse the branches that are at their limit, and no others. Never throws. */
  #enforce(): Promise<void> {
    this.#enforcing ??= this.#enforceOnce().finally(() => {
      this.#enforcing = null;
    });
    return this.#enforcing;
  }

  async #enforceOnce(): Promise<void> {
    if (performance.now() < this.#tryAgainAt) return;
    try {
      this.#shut ??= await this.#takeOver();
      for (;;) {
        const wanted = this.#windows.atLimit(performance.now());
        if (sameMembers(this.#shut, wanted)) break;
        await this.#refuse();
        await writeBlockedBranches(this.#host.postgres, wanted);
        await this.#host.rules.publish();
        this.#tell(this.#shut, new Set(wanted.keys()));
        this.#shut = new Set(wanted.keys());
      }
      this.#note('limit', null);
    } catch (error) {
      this.#tryAgainAt = performance.now() + TRY_AGAIN_AFTER_MS;
      this.#note('limit', error);
    }
  }

  /** Goes on with what an earlier process left shut. */
  async #takeOver(): Promise<Set<string>> {
    const left = await readBlockedBranches(this.#host.postgres);
    for (const { branch_id, ends_in } of left) this.#windows.resume(branch_id, performance.now(), ends_in);
    return new Set(left.map(({ branch_id }) => branch_id));
  }

  #tell(before: ReadonlySet<string>, after: ReadonlySet<string>) {
    const counted = this.#windows.atLimit(performance.now());
    for (const branch_id of after) {
      // With it goes how many there were by now: a crowd is through before the rules are.
      if (!before.has(branch_id))
        this.#log('attempts.limited', { branch_id, count: counted.get(branch_id)?.count });
    }
    for (const branch_id of before)
      if (!after.has(branch_id)) this.#log('attempts.open_again', { branch_id });
  }

  /** Logs what keeps attempts from being limited when it begins, changes and ends. */
  #note(what: string, trouble: unknown) {
    const reason =
      trouble === null ? undefined : trouble instanceof Error ? trouble.message : String(trouble);
    if (reason === this.#troubles.get(what)) return;
    if (reason === undefined) this.#troubles.delete(what);
    else this.#troubles.set(what, reason);
    this.#log(reason === undefined ? 'attempts.watched_again' : 'attempts.unwatched', { what, reason });
  }
}

const sameMembers = (one: ReadonlySet<string>, other: ReadonlyMap<string, unknown>) =>
  one.size === other.size && [...one].every((member) => other.has(member));

/** A login's name has the branch's id in it. */
const branchOf = (login: string) => login.replace(/^u_(.{8})(.{4})(.{4})(.{4})(.{12})_.*$/, '$1-$2-$3-$4-$5');
