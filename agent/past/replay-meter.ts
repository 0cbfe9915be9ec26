import type { ReplayProgress } from '../../shared/project/job.ts';
import { segmentNumber } from './segments.ts';

/** Measures a replay by the segments of the WAL that PostgreSQL asks for, one after the other. */
export class ReplayMeter {
  readonly #last: number;
  readonly #segmentBytes: number;
  readonly #now: () => number;
  #first = Number.POSITIVE_INFINITY;
  #startedAt = 0;

  /**
   * @param last number of the segment with the end of the replay, as far as that is known
   * @param now milliseconds
   */
  constructor(last: number, segmentBytes: number, now: () => number = () => performance.now()) {
    this.#last = last;
    this.#segmentBytes = segmentBytes;
    this.#now = now;
  }

  /** @param name of the file that PostgreSQL has asked for @returns null if that is no segment */
  reached(name: string): ReplayProgress | null {
    const number = segmentNumber(name, this.#segmentBytes);
    if (number === null) return null;
    // The segment of the checkpoint is read before an earlier one, with which the replay begins.
    if (number < this.#first) {
      this.#first = number;
      this.#startedAt = this.#now();
    }
    const replayed = number - this.#first;
    const all = Math.max(this.#last, number) - this.#first + 1;
    const seconds = (this.#now() - this.#startedAt) / 1000;
    return {
      bytes: all * this.#segmentBytes,
      replayed_bytes: replayed * this.#segmentBytes,
      seconds_left: replayed === 0 ? null : Math.ceil((seconds * (all - replayed)) / replayed),
    };
  }
}
