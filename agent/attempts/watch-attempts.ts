import { setTimeout as sleep } from 'node:timers/promises';
import type { RuleSync } from '../access/sync-rules.ts';
import type { Log } from '../link/dispatch.ts';
import { LogFollower } from '../logs/follow-log.ts';
import type { Pool } from '../postgres/connect.ts';
import { type AgentSettings, rulesFolder } from '../settings.ts';
import { TroubleLog } from '../trouble-log.ts';
import { Admission } from './admission.ts';
import { AttemptWindows } from './attempt-windows.ts';
import { readBlockedBranches, writeBlockedBranches } from './blocked-branches.ts';
import { CONNECTION_LOGS, type ConnectionLog } from './connection-logs.ts';

/** Attempts per minute and branch, over both ports (specification 8). */
const ATTEMPTS = 50;
const WINDOW_MS = 60_000;
/** Longest delay before a branch opens again, and the interval of retries. */
const CHECK_EVERY_MS = 250;
const RETRY_AFTER_MS = 1_000;

interface Watched {
  settings: AgentSettings;
  postgres: Pool;
  rules: RuleSync;
}

/**
 * Counts the attempts that both servers log, and blocks a branch from its last allowed attempt until its window
 * ends. The blocked branches are stored in the agent's tables: a control tool that syncs the rules leaves them
 * blocked, and the agent's next process opens them in time. Counts below the limit are lost with the process.
 */
export class AttemptWatch {
  readonly #host: Watched;
  readonly #log: Log;
  readonly #windows: AttemptWindows;
  readonly #limitTrouble: (trouble: unknown) => void;
  /** Branches that both servers are known to reject; null at first. */
  #blocked: ReadonlySet<string> | null = null;
  #blocking: Promise<void> = Promise.resolve();
  #enforcing: Promise<void> | null = null;
  #retryAt = 0;

  /** @param windowMs set by tests only */
  constructor(host: Watched, log: Log, windowMs = WINDOW_MS) {
    this.#host = host;
    this.#log = log;
    this.#windows = new AttemptWindows(ATTEMPTS, windowMs);
    this.#limitTrouble = this.#troubleOf('limit');
  }

  /** Watches until `signal` aborts. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    const following = CONNECTION_LOGS.map((log) => this.#follow(log, signal));
    while (!signal.aborted) {
      await this.#enforce();
      await sleep(CHECK_EVERY_MS, undefined, { signal }).catch(() => {});
    }
    await Promise.all(following);
    await this.#enforcing;
  }

  #follow(
    { name, locate, between, marks, read, includesRejected }: ConnectionLog,
    signal: AbortSignal,
  ): Promise<void> {
    const { settings } = this.#host;
    const admission = new Admission(rulesFolder(settings));
    const follower = new LogFollower({
      locate: () => locate(settings),
      ...(between && { between }),
      marks,
      onLines: (lines) => {
        if (includesRejected) admission.refresh();
        for (const attempt of lines.map(read)) {
          if (attempt && !(includesRejected && !admission.admits(attempt)))
            this.#count(branchOf(attempt.login));
        }
      },
    });
    return follower.follow(signal, this.#troubleOf(`log of ${name}`));
  }

  #count(branchId: string) {
    if (!this.#windows.count(branchId, performance.now())) return;
    // Blocks it before a sync in progress for another branch ends.
    this.#block().catch(() => {});
    void this.#enforce();
  }

  #block(): Promise<void> {
    const block = () =>
      this.#host.rules.block('attempts', new Set(this.#windows.atLimit(performance.now()).keys()));
    this.#blocking = this.#blocking.then(block, block);
    return this.#blocking;
  }

  /** Makes the servers reject the branches that are at their limit, and no others. Never throws. */
  #enforce(): Promise<void> {
    this.#enforcing ??= this.#enforceOnce().finally(() => {
      this.#enforcing = null;
    });
    return this.#enforcing;
  }

  async #enforceOnce(): Promise<void> {
    if (performance.now() < this.#retryAt) return;
    try {
      this.#blocked ??= await this.#takeOver();
      for (;;) {
        const wanted = this.#windows.atLimit(performance.now());
        if (sameMembers(this.#blocked, wanted)) break;
        await this.#block();
        await writeBlockedBranches(this.#host.postgres, wanted);
        await this.#host.rules.sync();
        this.#logChanges(this.#blocked, new Set(wanted.keys()));
        this.#blocked = new Set(wanted.keys());
      }
      this.#limitTrouble(null);
    } catch (error) {
      this.#retryAt = performance.now() + RETRY_AFTER_MS;
      this.#limitTrouble(error);
    }
  }

  /** Continues the blocks that an earlier process left. */
  async #takeOver(): Promise<Set<string>> {
    const left = await readBlockedBranches(this.#host.postgres);
    for (const { branch_id, ends_in } of left) this.#windows.resume(branch_id, performance.now(), ends_in);
    return new Set(left.map(({ branch_id }) => branch_id));
  }

  #logChanges(before: ReadonlySet<string>, after: ReadonlySet<string>) {
    const counted = this.#windows.atLimit(performance.now());
    for (const branch_id of after) {
      // The present count is logged too, because concurrent attempts pass before the rules are in effect.
      if (!before.has(branch_id))
        this.#log('attempts.limited', { branch_id, count: counted.get(branch_id)?.count });
    }
    for (const branch_id of before)
      if (!after.has(branch_id)) this.#log('attempts.open_again', { branch_id });
  }

  /** Logs why attempts cannot be limited, and when they can be again. @param what log or step concerned */
  #troubleOf(what: string): (trouble: unknown) => void {
    const troubles = new TroubleLog(this.#log);
    return (trouble) => {
      if (trouble !== null) {
        troubles.report('attempts.unwatched', what, trouble, { what });
      } else if (troubles.clear(what)) {
        this.#log('attempts.watched_again', { what });
      }
    };
  }
}

const sameMembers = (one: ReadonlySet<string>, other: ReadonlyMap<string, unknown>) =>
  one.size === other.size && [...one].every((member) => other.has(member));

/** The branch's id, which its logins' names contain. */
const branchOf = (login: string) => login.replace(/^u_(.{8})(.{4})(.{4})(.{4})(.{12})_.*$/, '$1-$2-$3-$4-$5');
