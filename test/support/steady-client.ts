import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import { IS_NIGHTLY } from './nightly.ts';
import { percentile } from './percentile.ts';

const PAUSE_MS = 25;
/** A client that only fails ends by itself. */
const FAILURES_MAX = 20;
const TIMES_IDLE = 5;
/** Of the measurement without an attack. By day other files run on the same processors, so nothing is compared. */
const IDLE_MS = IS_NIGHTLY ? 20_000 : 1_000;

/** A client of another tenant, which works on while an attack runs. */
export class SteadyClient {
  readonly failures: string[] = [];
  readonly #times: number[] = [];
  readonly #working: Promise<void>;
  #idle = Number.NaN;
  #isOver = false;

  private constructor(work: () => Promise<unknown>, also: (turn: number) => Promise<unknown>) {
    this.#working = this.#run(work, also);
  }

  /**
   * @param work is repeated and measured
   * @param also follows it, and must not fail either
   */
  static async start(
    work: () => Promise<unknown>,
    also: (turn: number) => Promise<unknown> = async () => {},
  ): Promise<SteadyClient> {
    const started = new SteadyClient(work, also);
    await sleep(IDLE_MS);
    started.#idle = started.#takeP99();
    return started;
  }

  /**
   * Nothing has failed since the start, nor since the last call taken five times as long as before the attacks.
   * @param inevitableMs what an attack may take in any case
   */
  expectUndisturbed(inevitableMs = 0): void {
    expect(this.failures).toEqual([]);
    const p99 = this.#takeP99();
    if (IS_NIGHTLY) expect(p99).toBeLessThanOrEqual(Math.max(inevitableMs, TIMES_IDLE * this.#idle));
  }

  async end(): Promise<void> {
    this.#isOver = true;
    await this.#working;
  }

  /** In milliseconds. */
  #takeP99(): number {
    return percentile(this.#times.splice(0), 0.99);
  }

  async #run(work: () => Promise<unknown>, also: (turn: number) => Promise<unknown>): Promise<void> {
    for (let turn = 0; !this.#isOver && this.failures.length <= FAILURES_MAX; turn += 1) {
      const begun = performance.now();
      try {
        await work();
        this.#times.push(performance.now() - begun);
        await also(turn);
      } catch (error) {
        this.failures.push(String(error));
      }
      await sleep(PAUSE_MS);
    }
  }
}
