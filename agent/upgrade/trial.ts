import { existsSync, statSync } from 'node:fs';
import { sha256OfFile, siblingOf } from './program-file.ts';
import { type RunRecord, readRunRecord, startOf, writeRunRecord } from './run-record.ts';

/** A program that has ended this often before it linked does not work. */
const STARTS_MAX = 3;

/**
 * The trial of a program that `upgrade` has installed. It lasts until the program has linked once. A program that does
 * not link in time, or ends again and again, is left for the one before it, which lies next to it. The agent decides
 * this at its start, so that it works although `upgrade` was killed.
 *
 * It uses nothing but Node, because it must work in a program in which something else does not.
 */
export class Trial {
  readonly #stateDir: string;
  #record: RunRecord;
  /** Whether the program has yet to link. */
  readonly isPending: boolean;

  private constructor(stateDir: string, record: RunRecord, isPending: boolean) {
    this.#stateDir = stateDir;
    this.#record = record;
    this.isPending = isPending;
  }

  /** @returns the program to run instead, if this one has failed its trial */
  static begin(program: string, stateDir: string): Trial | { instead: string } {
    const sha256 = sha256OfFile(program);
    const before = readRunRecord(stateDir);
    const proven = before?.proven ?? null;
    const previous = siblingOf(program, 'previous');
    const isPending = sha256 !== proven && existsSync(previous);
    const record: RunRecord = {
      pid: process.pid,
      started: startOf(process.pid),
      sha256,
      linked: false,
      proven,
      trial: before?.trial ?? null,
    };
    if (!isPending) {
      writeRunRecord(stateDir, record);
      return new Trial(stateDir, record, false);
    }
    const installation = installationOf(program, sha256);
    const { starts, failed } =
      before?.trial?.installation === installation ? before.trial : { starts: 0, failed: false };
    const isFailed = failed || starts >= STARTS_MAX;
    record.trial = { installation, starts: starts + 1, failed: isFailed };
    writeRunRecord(stateDir, record);
    return isFailed ? { instead: previous } : new Trial(stateDir, record, true);
  }

  /** The program has linked or lost its link. The first link ends its trial, but not that of a program which it replaces. */
  setLinked(linked: boolean): void {
    const proof = { proven: this.#record.sha256, ...(this.isPending && { trial: null }) };
    this.#write({ linked, ...(linked && proof) });
  }

  /** The program did not link in time. The next start runs the one before it. */
  fail(): void {
    const { trial } = this.#record;
    if (trial) this.#write({ trial: { ...trial, failed: true } });
  }

  #write(changes: Partial<RunRecord>): void {
    this.#record = { ...this.#record, ...changes };
    writeRunRecord(this.#stateDir, this.#record);
  }
}

const installationOf = (program: string, sha256: string) => `${sha256} ${statSync(program).mtimeMs}`;

/** Whether the installed program has failed its trial, so that the one before it runs. */
export function hasFailed(program: string, stateDir: string): boolean {
  const trial = readRunRecord(stateDir)?.trial;
  return (
    trial?.failed === true &&
    existsSync(siblingOf(program, 'previous')) &&
    trial.installation === installationOf(program, sha256OfFile(program))
  );
}
