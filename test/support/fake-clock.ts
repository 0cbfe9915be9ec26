import type { Clock } from '../../shared/protocol/transport.ts';

/** A clock that only a test advances. */
export class FakeClock implements Clock {
  #now = Date.parse('2026-11-21T12:00:00Z');
  readonly #tasks = new Set<{ at: number; task: () => void }>();

  now = () => this.#now;

  after = (milliseconds: number, task: () => void) => {
    const entry = { at: this.#now + milliseconds, task };
    this.#tasks.add(entry);
    return () => this.#tasks.delete(entry);
  };

  /** Number of running timers. A test can show that none is left. */
  get waiting(): number {
    return this.#tasks.size;
  }

  advance(milliseconds: number): void {
    const end = this.#now + milliseconds;
    for (;;) {
      const [next] = [...this.#tasks].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at);
      if (!next) break;
      this.#tasks.delete(next);
      this.#now = next.at;
      next.task();
    }
    this.#now = end;
  }
}
