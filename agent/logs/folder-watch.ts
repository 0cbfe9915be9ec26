import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';

/** Longest wait without a notification from the kernel, which not every file system sends. */
const POLL_EVERY_MS = 250;

/** Waits for changes in the folder of a file, or until it is time to poll. */
export class FolderWatch {
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
