import {
  closeSync,
  type FSWatcher,
  fstatSync,
  openSync,
  readSync,
  type Stats,
  statSync,
  watch,
} from 'node:fs';
import { dirname } from 'node:path';
import { setImmediate as yieldToEventLoop } from 'node:timers/promises';

/** Longest wait without a notification from the kernel, which not every file system sends. */
const POLL_EVERY_MS = 250;

/** Waits for changes in the folder of a file, or until it is time to poll. */
class FolderWatch {
  #folder: string | null = null;
  #watcher: FSWatcher | null = null;
  #notified = false;
  #wake: (() => void) | null = null;

  /** Watches the folder of this file from now on. */
  follow(path: string | null): void {
    const folder = path && dirname(path);
    if (folder === this.#folder) return;
    this.close();
    if (!folder) return;
    try {
      this.#watcher = watch(folder, () => this.notify());
      this.#watcher.on('error', () => this.close());
      this.#folder = folder;
    } catch {
      // The folder is missing, or the kernel has no watches left: polling suffices.
    }
  }

  /** Ends the present or the next wait. */
  notify(): void {
    this.#notified = true;
    this.#wake?.();
  }

  /** Resolves after the next change, or immediately when there was one since the last call. */
  async next(): Promise<void> {
    if (!this.#notified) {
      const { promise, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, POLL_EVERY_MS);
      this.#wake = resolve;
      await promise;
      clearTimeout(timer);
      this.#wake = null;
    }
    this.#notified = false;
  }

  close(): void {
    this.#watcher?.close();
    this.#watcher = null;
    this.#folder = null;
  }
}

/** Bytes per read. A longer line is not one of interest and is skipped. */
const CHUNK_BYTES = 64 * 1024;
const NEWLINE = 0x0a;

interface FollowedLog {
  /** The log's present path; null while there is none. */
  locate: () => string | null;
  /** Paths of the logs that were begun after the first and before the second path, in their order. */
  between?: (from: string, to: string) => readonly string[];
  /** A line that contains none of these is skipped. */
  marks: readonly string[];
  /** Called with whole lines. */
  onLines: (lines: string[]) => void;
}

/**
 * Follows a log that another process writes, across rotations and truncation. It starts at the end of an
 * existing log, and at the beginning of one that is created later. Against a flooded log, memory use is
 * constant and the event loop is yielded to after every chunk. Reads are synchronous, because they take
 * microseconds: on a busy machine, Node's thread pool would delay a block by the duration of another attempt.
 */
export class LogFollower {
  readonly #log: FollowedLog;
  readonly #buffer = Buffer.alloc(CHUNK_BYTES);
  #path: string | null = null;
  #file: number | null = null;
  /** Path of the open file when it was opened. */
  #openPath: string | null = null;
  #hasPolled = false;
  /** Offset of the next read in the file. */
  #position = 0;
  /** Bytes of an unfinished line at the beginning of the buffer. */
  #held = 0;
  /** Whether the unfinished line is too long. */
  #skipping = false;

  constructor(log: FollowedLog) {
    this.#log = log;
  }

  /**
   * Reads new lines until `signal` aborts. Never throws.
   * @param onPoll called after each poll with the error that prevented it, or null
   */
  async follow(signal: AbortSignal, onPoll: (trouble: unknown) => void): Promise<void> {
    const folder = new FolderWatch();
    const stop = () => folder.notify();
    signal.addEventListener('abort', stop, { once: true });
    while (!signal.aborted) {
      onPoll(
        await this.poll().then(
          () => null,
          (error: unknown) => error,
        ),
      );
      folder.follow(this.#path);
      await folder.next();
    }
    folder.close();
    this.close();
  }

  /**
   * Reads lines written since the last poll; the first poll only finds the end. Calls must not run
   * concurrently.
   */
  async poll(): Promise<void> {
    await this.#readRest();
    this.#path = this.#log.locate();
    const found = this.#path && statSync(this.#path, { throwIfNoEntry: false });
    if (this.#path && found) await this.#catchUp(this.#path, found);
    this.#hasPolled = true;
  }

  /** Bytes that were written to the log and not read yet. */
  unreadBytes(): number {
    const path = this.#log.locate();
    const present = path === null ? undefined : statSync(path, { throwIfNoEntry: false });
    if (!present || !this.#hasPolled) return 0;
    const open = this.#file === null ? null : fstatSync(this.#file);
    if (open?.ino === present.ino && open.dev === present.dev)
      return Math.max(0, present.size - this.#position);
    return Math.max(0, (open?.size ?? 0) - this.#position) + present.size;
  }

  close(): void {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }

  async #catchUp(path: string, found: Stats): Promise<void> {
    const open = this.#file === null ? null : fstatSync(this.#file);
    if (open?.ino === found.ino && open.dev === found.dev) {
      if (found.size >= this.#position) return;
      this.#moveTo(0);
    } else {
      // The new log is still empty: its writer may not have switched to it yet.
      if (open && found.size === 0) return;
      await this.#readRest();
      for (const skipped of this.#begunBefore(path)) {
        this.#open(skipped);
        this.#moveTo(0);
        await this.#readRest();
      }
      this.#open(path);
      this.#moveTo(this.#hasPolled ? 0 : found.size);
    }
    await this.#readRest();
  }

  /**
   * Logs that were begun and ended since the last poll, because the writer may switch more than once in
   * between.
   */
  #begunBefore(path: string): readonly string[] {
    if (this.#openPath === null || this.#openPath === path) return [];
    return this.#log.between?.(this.#openPath, path) ?? [];
  }

  #open(path: string) {
    const file = openSync(path, 'r');
    this.close();
    this.#file = file;
    this.#openPath = path;
  }

  #moveTo(position: number) {
    this.#position = position;
    this.#held = 0;
    this.#skipping = false;
  }

  async #readRest(): Promise<void> {
    while (this.#file !== null) {
      const free = this.#buffer.subarray(this.#held);
      const bytes = readSync(this.#file, free, 0, free.length, this.#position);
      this.#position += bytes;
      const lines = this.#take(this.#held + bytes);
      if (lines.length > 0) this.#log.onLines(lines);
      if (bytes < free.length) return;
      await yieldToEventLoop();
    }
  }

  /**
   * Lines of interest among the first `filled` bytes of the buffer; an unfinished line stays in the buffer.
   */
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

/** Searches the whole text for the mark, so that a flood of other lines costs almost nothing. */
function linesWith(mark: string, text: Buffer): string[] {
  const lines: string[] = [];
  for (let at = text.indexOf(mark); at !== -1; ) {
    const end = text.indexOf(NEWLINE, at);
    lines.push(text.toString('utf8', text.lastIndexOf(NEWLINE, at) + 1, end));
    at = text.indexOf(mark, end);
  }
  return lines;
}
