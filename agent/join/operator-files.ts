import { lstatSync } from 'node:fs';
import { dirname } from 'node:path';
import { z } from 'zod';
import { type Machine, type Placing, StepFailure, sha256 } from './machine.ts';

/** Folders of systemd that exist for their drop-ins only. */
const DROP_INS = /\.service\.d$/;

/** What `join` has changed on this machine, for `leave`. Root alone writes it. */
const RECORD_FILE = '/etc/branchgate/joined.json';

const WrittenFile = z.object({
  /** Checksums of all texts that `join` has written; another text is the operator's. */
  written: z.array(z.string()),
  /** The operator's own file, as it was before. */
  copy: z.string().nullable(),
});

const Record = z.object({
  files: z.record(z.string(), WrittenFile),
  /** Lines that were added to files of the operator, by path. */
  lines: z.record(z.string(), z.array(z.string())),
  /** Kernel settings as they were before. */
  kernel: z.record(z.string(), z.string()),
});
type Record = z.output<typeof Record>;

const NOTHING: Record = { files: {}, lines: {}, kernel: {} };

/**
 * The files that `join` writes among those of the operator. An operator's own text is kept in a copy next to
 * the file, which `leave` puts back. The record is written before the file, so that a kill between the two
 * loses nothing.
 */
export class OperatorFiles {
  readonly #machine: Machine;

  constructor(machine: Machine) {
    this.#machine = machine;
  }

  get isJoined(): boolean {
    return this.#machine.exists(RECORD_FILE);
  }

  /** @throws StepFailure when the record is damaged */
  record(): Record {
    const text = this.#machine.read(RECORD_FILE);
    if (text === null) return structuredClone(NOTHING);
    try {
      return Record.parse(JSON.parse(text));
    } catch {
      throw new StepFailure('refused', `${RECORD_FILE} is damaged: restore it from a backup, or remove it`);
    }
  }

  async #store(change: (record: Record) => void): Promise<void> {
    const record = this.record();
    const before = JSON.stringify(record);
    change(record);
    if (JSON.stringify(record) !== before || !this.isJoined)
      await this.#machine.put(RECORD_FILE, `${JSON.stringify(record, null, 2)}\n`);
  }

  rememberKernel(name: string, value: string): Promise<void> {
    return this.#store((record) => {
      record.kernel[name] ??= value;
    });
  }

  /** Makes a file have this text. */
  async write(path: string, text: string, placing: Placing = {}): Promise<void> {
    const machine = this.#machine;
    const now = machine.read(path);
    const known = this.record().files[path];
    if (now === text && machine.isPlaced(path, placing) && known) return;
    const isOperators = now !== null && now !== text && !known?.written.includes(sha256(now));
    const copy = isOperators ? this.#copyName(path, now) : null;
    await machine.change(`wrote ${path}${copy ? `; the former one is ${copy}` : ''}`, async () => {
      if (copy && machine.read(copy) !== now) await machine.put(copy, now ?? '', this.#placingOf(path));
      await this.#store(({ files }) => {
        const file = files[path] ?? { written: [], copy: null };
        file.copy ??= copy;
        if (!file.written.includes(sha256(text))) file.written.push(sha256(text));
        files[path] = file;
      });
      await machine.put(path, text, placing);
    });
  }

  /** Adds lines at the end of a file of the operator. */
  async addLines(path: string, lines: readonly string[]): Promise<void> {
    const machine = this.#machine;
    const now = machine.read(path) ?? '';
    const missing = lines.filter((line) => !now.split('\n').includes(line));
    if (missing.length === 0) return;
    const head = now === '' || now.endsWith('\n') ? now : `${now}\n`;
    await machine.change(`added to ${path}: ${missing.join(', ')}`, async () => {
      await this.#store((record) => {
        record.lines[path] = [...new Set([...(record.lines[path] ?? []), ...missing])];
      });
      await machine.put(path, `${head}${missing.join('\n')}\n`, this.#placingOf(path));
    });
  }

  /** Files that the present configuration does not need any more, for instance those of a standby. */
  async drop(paths: readonly string[]): Promise<void> {
    for (const path of paths) if (this.record().files[path]) await this.#restore(path);
  }

  /** Takes everything back. */
  async restoreAll(): Promise<void> {
    const { files, lines } = this.record();
    for (const path of Object.keys(files)) await this.#restore(path);
    for (const [path, added] of Object.entries(lines)) await this.#removeLines(path, added);
  }

  /** The last act of `leave`. */
  async forget(): Promise<void> {
    if (this.isJoined)
      await this.#machine.change(`removed ${RECORD_FILE}`, () => this.#machine.remove(RECORD_FILE));
  }

  /** What the operator has changed since stays: it is left in place, or next to the restored file. */
  async #restore(path: string): Promise<void> {
    const machine = this.#machine;
    const file = this.record().files[path];
    const now = machine.read(path);
    const isOurs = now !== null && (file?.written.includes(sha256(now)) ?? false);
    const copy = file?.copy ?? null;
    if (copy !== null && machine.exists(copy)) {
      await machine.change(`put back ${path}`, async () => {
        if (now !== null && !isOurs) await machine.move(path, `${path}.after-join`);
        await machine.move(copy, path);
      });
      if (now !== null && !isOurs) machine.note(`${path} was changed since: that text is ${path}.after-join`);
    } else if (isOurs) {
      await machine.change(`removed ${path}`, async () => {
        await machine.remove(path);
        if (DROP_INS.test(dirname(path))) machine.removeEmpty(dirname(path));
      });
    } else if (now !== null && copy === null) {
      machine.note(`${path} was changed since, so it stays: remove what is not needed`);
    }
  }

  async #removeLines(path: string, added: readonly string[]): Promise<void> {
    const now = this.#machine.read(path);
    const left = now?.split('\n').filter((line) => !added.includes(line));
    if (now === null || left === undefined || left.join('\n') === now) return;
    await this.#machine.change(`removed the lines of join from ${path}`, () =>
      this.#machine.put(path, left.join('\n'), this.#placingOf(path)),
    );
  }

  /** The first free name, or that of the copy of the same text, which a killed run has made. */
  #copyName(path: string, text: string): string {
    for (let number = 1; ; number++) {
      const name = `${path}.before-join${number > 1 ? `.${number}` : ''}`;
      const found = this.#machine.read(name);
      if (found === null || found === text) return name;
    }
  }

  #placingOf(path: string): Placing {
    const found = lstatSync(this.#machine.at(path), { throwIfNoEntry: false });
    if (!found) return {};
    const owner = this.#machine.users().find(({ uid }) => uid === found.uid)?.name;
    return { mode: found.mode & 0o7777, ...(owner !== undefined && { owner }) };
  }
}
