import { closeSync, fstatSync, openSync, readSync, type Stats, statSync } from 'node:fs';
import { setImmediate as giveWay } from 'node:timers/promises';
import { FolderWatch } from './folder-watch.ts';

/** Read at once. A longer line tells of no attempt and is passed over. */
const CHUNK_BYTES = 64 * 1024;
const NEWLINE = 0x0a;

interface FollowedLog {
  /** Where the log is now; null while there is none. */
  locate: () => string | null;
  /** A line with none of these in it is passed over unread. */
  marks: readonly string[];
  /** Called with whole lines. */
  onLines: (lines: string[]) => void;
}

/**
 * Follows a log that one other process writes, across rotation and truncation, from its end on; a log that comes
 * into being later, from its beginning. Memory does not grow with what is written, and the event loop is given
 * back after every chunk: whoever floods the log must not stop the agent. A chunk is read at once, which takes
 * microseconds; by way of Node's threads a busy machine takes as long as another attempt does.
 */
export class LogFollower {
  readonly #log: FollowedLog;
  readonly #buffer = Buffer.alloc(CHUNK_BYTES);
  #path: string | null = null;
  #file: number | null = null;
  #hasLooked = false;
  /** Where to read on in the file. */
  #position = 0;
  /** Bytes of an unfinished line, at the beginning of the buffer. */
  #held = 0;
  /** Whether the unfinished line has become too long. */
  #skipping = false;

  constructor(log: FollowedLog) {
    this.#log = log;
  }

  /**
   * Reads whatever is new, until `signal`. Never throws.
   * @param onLook told after each look what keeps the log from being read, or null
   */
  async follow(signal: AbortSignal, onLook: (trouble: unknown) => void): Promise<void> {
    const news = new FolderWatch();
    const stop = () => news.notify();
    signal.addEventListener('abort', stop, { once: true });
    while (!signal.aborted) {
      onLook(
        await this.poll().then(
          () => null,
          (error: unknown) => error,
        ),
      );
      news.follow(this.#path);
      await news.next();
    }
    news.close();
    this.close();
  }

  /** Reads what was written since the last look; the first one only finds the end. Not to be called side by side. */
  async poll(): Promise<void> {
    await this.#readOn();
    this.#path = this.#log.locate();
    const there = this.#path && statSync(this.#path, { throwIfNoEntry: false });
    if (this.#path && there) await this.#keepUpWith(this.#path, there);
    this.#hasLooked = true;
  }

  close(): void {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }

  async #keepUpWith(path: string, there: Stats): Promise<void> {
    const here = this.#file === null ? null : fstatSync(this.#file);
    if (here?.ino === there.ino && here.dev === there.dev) {
      if (there.size >= this.#position) return;
      this.#goTo(0);
    } else {
      // A new log that is still empty: its writer may not have moved on yet.
      if (here && there.size === 0) return;
      await this.#readOn();
      this.close();
      this.#file = openSync(path, 'r');
      this.#goTo(this.#hasLooked ? 0 : there.size);
    }
    await this.#readOn();
  }

  #goTo(position: number) {
    this.#position = position;
    this.#held = 0;
    this.#skipping = false;
  }

  async #readOn(): Promise<void> {
    while (this.#file !== null) {
      const free = this.#buffer.subarray(this.#held);
      const bytes = readSync(this.#file, free, 0, free.length, this.#position);
      this.#position += bytes;
      const lines = this.#take(this.#held + bytes);
      if (lines.length > 0) this.#log.onLines(lines);
      if (bytes < free.length) return;
      await giveWay();
    }
  }

  /** Lines of interest among the first `filled` bytes of the buffer, of which an unfinished line is kept. */
  #take(filled: number): string[] {
    const text = this.#buffer.subarray(0, filled);
    const end = text.lastIndexOf(NEWLINE) + 1;
    if (end === 0) {
      this.#skipping ||= filled === CHUNK_BYTES;
      this.#held = this.#skipping ? 0 : filled;
      return [];
    }
    const whole = text.subarray(this.#skipping ? text.indexOf(NEWLINE) + 1 : 0, end);
    const lines = this.#log.marks.flatMap((mark) => linesWith(mark, whole));
    this.#skipping = false;
    this.#buffer.copyWithin(0, end, filled);
    this.#held = filled - end;
    return lines;
  }
}

/** Searched all at once, so that a flood of other lines costs next to nothing. */
function linesWith(mark: string, text: Buffer): string[] {
  const lines: string[] = [];
  for (let at = text.indexOf(mark); at !== -1; ) {
    const end = text.indexOf(NEWLINE, at);
    lines.push(text.toString('utf8', text.lastIndexOf(NEWLINE, at) + 1, end));
    at = text.indexOf(mark, end);
  }
  return lines;
}
