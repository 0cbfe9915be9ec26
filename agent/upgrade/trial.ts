import { existsSync, readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { sha256OfFile, siblingOf } from './program-file.ts';

/** A program that has yet to link for the first time. */
interface TrialOutcome {
  /** The program's checksum and the time at which it was installed, so that it can be installed again. */
  installation: string;
  starts: number;
  failed: boolean;
}

/**
 * What the agent writes down about itself, in `STATE_DIR/run.json`. It contains no secret. The agent alone
 * writes it, because root must not write into a folder of another user.
 */
export interface RunRecord {
  pid: number;
  /** When the process started, which distinguishes it from a later one with the same id. */
  started: string | null;
  /** The hash of the program that runs. */
  sha256: string;
  linked: boolean;
  /** The last program that has linked. */
  proven: string | null;
  trial: TrialOutcome | null;
}

const recordFile = (stateDir: string) => join(stateDir, 'run.json');

/** Null when there is none yet, or it is damaged: it can be missing without harm. */
export function readRunRecord(stateDir: string): RunRecord | null {
  try {
    const record = JSON.parse(readFileSync(recordFile(stateDir), 'utf8'));
    return Number.isInteger(record?.pid) && typeof record.sha256 === 'string' ? record : null;
  } catch {
    return null;
  }
}

/**
 * Replaces the record, so that a crash leaves the old one or the new one. Where it cannot be written, the
 * agent works without it.
 */
export function writeRunRecord(stateDir: string, record: RunRecord): void {
  const file = recordFile(stateDir);
  try {
    writeFileSync(`${file}.new`, `${JSON.stringify(record)}\n`, { mode: 0o644, flush: true });
    renameSync(`${file}.new`, file);
  } catch {
    // The folder is missing before the enrolment, and its volume can be full.
  }
}

/**
 * When a process started, in ticks since the start of the machine (proc_pid_stat(5)); null if it does not
 * run.
 */
export function startOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
    // The name of the program is in parentheses and may contain any character.
    const [state, ...fields] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
    return state === 'Z' ? null : (fields[18] ?? null);
  } catch {
    return null;
  }
}

/**
 * Whether the recorded process is the agent and runs. The agent's user owns the folder, and must not be able
 * to have root signal a process of someone else. The owner of the file proves nothing: it can be a link to a
 * file of root.
 */
export function isRunning(stateDir: string, { pid, started }: RunRecord): boolean {
  if (started === null || startOf(pid) !== started) return false;
  const ownerOf = (path: string) => statSync(path, { throwIfNoEntry: false })?.uid;
  const owner = ownerOf(stateDir);
  return owner !== undefined && ownerOf(`/proc/${pid}`) === owner;
}

/** A program that has ended this often before it linked does not work. */
const STARTS_MAX = 3;

/**
 * The trial of a program that `upgrade` has installed. It lasts until the program has linked once. A program
 * that does not link in time, or ends again and again, is left for the one before it, which lies next to it.
 * The agent decides this at its start, so that it works although `upgrade` was killed.
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

  /**
   * The program has linked or lost its link. The first link ends its trial, but not that of a program which
   * it replaces.
   */
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
