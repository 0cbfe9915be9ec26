import { branchOfLogin } from '../../shared/branch/login.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import {
  type Block,
  blockKey,
  readBlockedAddresses,
  writeBlockedAddresses,
} from '../blocks/stored-blocks.ts';
import type { Log } from '../link/dispatch.ts';
import { CONNECTION_LOGS, type ConnectionLog } from '../logs/connection-logs.ts';
import { LogFollower } from '../logs/follow-log.ts';
import type { Pool } from '../postgres/connect.ts';
import { TroubleLog } from '../process/log.ts';
import { repeat } from '../process/loops.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { Admission } from './admission.ts';
import { AttemptWindows, clientNetwork } from './attempt-windows.ts';
import { StalledLogins } from './stalled-logins.ts';

export const WINDOW_MS = 60_000;
/** Longest delay before a blocked network is admitted again, and the interval of retries. */
const CHECK_EVERY_MS = 250;
const RETRY_AFTER_MS = 1_000;

interface Watched {
  settings: AgentSettings;
  postgres: Pool;
  rules: RuleSync;
}

/**
 * Counts the attempts that both servers log, and logins that stall. From its last allowed attempt until its window ends,
 * a client's network is blocked for that branch. The blocks are stored in the agent's tables: a control tool that syncs
 * the rules preserves them, and the agent's next process ends them in time. Counts below the limit are lost with the
 * process.
 */
export class AttemptWatch {
  readonly #host: Watched;
  readonly #log: Log;
  readonly #windows: AttemptWindows;
  readonly #now: () => number;
  readonly #limitTrouble: (trouble: unknown) => void;
  readonly #stalled = new StalledLogins();
  /** By the log's name. */
  readonly #followers = new Map<string, LogFollower>();
  /** Blocks that both servers are known to apply, by their keys; null at first. */
  #blocked: ReadonlyMap<string, Block> | null = null;
  #blocking: Promise<void> = Promise.resolve();
  #enforcing: Promise<void> | null = null;
  #retryAt = 0;

  /** @param now a steady clock of the windows, in milliseconds */
  constructor(host: Watched, log: Log, now: () => number = () => performance.now()) {
    this.#host = host;
    this.#log = log;
    this.#now = now;
    this.#windows = new AttemptWindows(host.settings.CONNECTION_ATTEMPTS_PER_MINUTE, WINDOW_MS);
    this.#limitTrouble = this.#troubleOf('limit');
  }

  /** Watches until `signal` aborts. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    const following = [
      ...CONNECTION_LOGS.map((log) => this.#follow(log, signal)),
      this.#stalled.follow(this.#host.postgres, signal, {
        onStalled: ({ branch_id, address }) => this.#count(branch_id, address),
        onPoll: this.#troubleOf('logins under way'),
      }),
    ];
    await repeat(() => this.#enforce(), CHECK_EVERY_MS, signal);
    await Promise.all(following);
    await this.#enforcing;
  }

  /** Bytes of each log in which attempts were not counted yet. */
  unread(): Map<string, number> {
    return new Map([...this.#followers].map(([name, follower]) => [name, follower.unreadBytes()]));
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
            this.#count(branchOfLogin(attempt.login), attempt.address);
        }
      },
    });
    this.#followers.set(name, follower);
    return follower.follow(signal, this.#troubleOf(`log of ${name}`));
  }

  #count(branchId: string, address: string) {
    if (!this.#windows.count(branchId, clientNetwork(address), this.#now())) return;
    // Blocks it before a sync in progress for another branch ends.
    this.#block().catch(() => {});
    void this.#enforce();
  }

  #block(): Promise<void> {
    const block = () => this.#host.rules.block('attempts', [...this.#windows.atLimit(this.#now()).values()]);
    this.#blocking = this.#blocking.then(block, block);
    return this.#blocking;
  }

  /** Makes the servers apply a block for each window at its limit, and no others. Never throws. */
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
        const wanted = this.#windows.atLimit(this.#now());
        if (sameKeys(this.#blocked, wanted)) break;
        await this.#block();
        await writeBlockedAddresses(this.#host.postgres, [...wanted.values()]);
        await this.#host.rules.sync();
        this.#logChanges(this.#blocked, wanted);
        this.#blocked = wanted;
      }
      this.#limitTrouble(null);
    } catch (error) {
      this.#retryAt = performance.now() + RETRY_AFTER_MS;
      this.#limitTrouble(error);
    }
  }

  /** Continues the blocks that an earlier process left. */
  async #takeOver(): Promise<Map<string, Block>> {
    const left = await readBlockedAddresses(this.#host.postgres);
    for (const block of left) this.#windows.resume(block, this.#now(), block.ends_in);
    return new Map(left.map((block) => [blockKey(block), block]));
  }

  #logChanges(before: ReadonlyMap<string, Block>, after: ReadonlyMap<string, Block>) {
    const counted = this.#windows.atLimit(this.#now());
    for (const [key, { branch_id, address }] of after) {
      // The present count is logged too, because concurrent attempts pass before the rules are in effect.
      if (!before.has(key))
        this.#log('attempts.limited', { branch_id, address, count: counted.get(key)?.count });
    }
    for (const [key, { branch_id, address }] of before)
      if (!after.has(key)) this.#log('attempts.open_again', { branch_id, address });
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

const sameKeys = (one: ReadonlyMap<string, unknown>, other: ReadonlyMap<string, unknown>) =>
  one.size === other.size && [...one.keys()].every((key) => other.has(key));
