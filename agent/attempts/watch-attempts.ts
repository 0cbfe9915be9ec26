import { branchOfLogin } from '../../shared/branch/login.ts';
import type { RuleSync } from '../access/sync-rules.ts';
import {
  BlockEnforcer,
  type BlockingHost,
  type BlockSource,
  type TimedBlock,
} from '../blocks/enforce-blocks.ts';
import { blockKey } from '../blocks/stored-blocks.ts';
import type { Log } from '../link/dispatch.ts';
import { CONNECTION_LOGS, type ConnectionLog } from '../logs/connection-logs.ts';
import { LogFollower } from '../logs/follow-log.ts';
import { TroubleLog } from '../process/log.ts';
import { repeat } from '../process/loops.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { Admission } from './admission.ts';
import { AttemptWindows, clientNetwork } from './attempt-windows.ts';
import { StalledLogins } from './stalled-logins.ts';

export const WINDOW_MS = 60_000;
/** Longest delay before a blocked network is admitted again. */
const CHECK_EVERY_MS = 250;

interface Watched extends BlockingHost {
  settings: AgentSettings;
  rules: BlockingHost['rules'] & Pick<RuleSync, 'attemptsOf'>;
}

/**
 * Counts the attempts that both servers log, and logins that stall. From the last allowed attempt until the
 * window ends, the branch is blocked, or with the scope `address` the client's network for that branch. Counts below the limit are lost with the
 * process.
 */
export class AttemptWatch implements BlockSource {
  readonly blocker = 'attempts';
  readonly now: () => number;
  readonly onTrouble: (trouble: unknown) => void;
  readonly #host: Watched;
  readonly #log: Log;
  readonly #windows: AttemptWindows;
  readonly #enforcer: BlockEnforcer;
  readonly #stalled = new StalledLogins();
  /** By the log's name. */
  readonly #followers = new Map<string, LogFollower>();

  /** @param now a steady clock of the windows, in milliseconds */
  constructor(host: Watched, log: Log, now: () => number = () => performance.now()) {
    this.now = now;
    this.#host = host;
    this.#log = log;
    this.onTrouble = this.#troubleOf('limit');
    this.#windows = new AttemptWindows(
      host.settings.CONNECTION_ATTEMPTS_SCOPE,
      (branchId) => host.rules.attemptsOf(branchId) ?? host.settings.CONNECTION_ATTEMPTS_PER_MINUTE,
      WINDOW_MS,
    );
    this.#enforcer = new BlockEnforcer(host, this);
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
    await repeat(() => this.#enforcer.enforce(), CHECK_EVERY_MS, signal);
    await Promise.all(following);
  }

  /** True if the branch accepts no further attempt of an address. */
  isFull(branchId: string, address: string): boolean {
    return this.#windows.isFull(branchId, clientNetwork(address), this.now());
  }

  /** Counts an attempt that neither server logs. @returns false if the limit had been reached before it */
  admit(branchId: string, address: string): boolean {
    if (this.isFull(branchId, address)) return false;
    this.#count(branchId, address);
    return true;
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
    if (!this.#windows.count(branchId, clientNetwork(address), this.now())) return;
    // Blocks it before a sync in progress for another branch ends.
    this.#enforcer.reject().catch(() => {});
    void this.#enforcer.enforce();
  }

  wanted(): TimedBlock[] {
    const full = this.#windows.atLimit(this.now());
    return [...full.values()].map(({ count, ...block }) => ({ ...block, reason: 'attempts' }));
  }

  resume(left: readonly TimedBlock[]): void {
    for (const block of left) this.#windows.resume(block, this.now(), block.end);
  }

  onApplied(begun: readonly TimedBlock[], ended: readonly TimedBlock[]): void {
    const counted = this.#windows.atLimit(this.now());
    for (const block of begun) {
      const { branch_id, address } = block;
      // The present count is logged, because concurrent attempts pass before the rules are in effect.
      this.#log('attempts.limited', { branch_id, address, count: counted.get(blockKey(block))?.count });
    }
    for (const { branch_id, address } of ended) this.#log('attempts.open_again', { branch_id, address });
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
