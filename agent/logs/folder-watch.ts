import { type FSWatcher, watch } from 'node:fs';
import { dirname } from 'node:path';

/** Without news from the kernel it is time to look after this long; not every file system tells. */
const LOOK_EVERY_MS = 250;

/** Tells that something has happened in the folder of a file, or that it is time to look anyway. */
export class FolderWatch {
  #folder: string | null = null;
  #watcher: FSWatcher | null = null;
  #told = false;
  #wake: (() => void) | null = null;

  /** From now on about this file. */
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
      // Not there, or the kernel has no watches left: the clock does.
    }
  }

  notify(): void {
    this.#told = true;
    this.#wake?.();
  }

  /** Resolves at once when there was news since it last did. */
  async next(): Promise<void> {
    if (!this.#told) {
      const { promise, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, LOOK_EVERY_MS);
      this.#wake = resolve;
      await promise;
      clearTimeout(timer);
      this.#wake = null;
    }
    this.#told = false;
  }

  close(): void {
    this.#watcher?.close();
    this.#watcher = null;
    this.#folder = null;
  }
}
