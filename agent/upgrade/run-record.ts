import { readFileSync, renameSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** A program that has yet to link for the first time. */
interface Trial {
  /** The program's checksum and the time at which it was installed, so that it can be installed again. */
  installation: string;
  starts: number;
  failed: boolean;
}

/**
 * What the agent writes down about itself, in `STATE_DIR/run.json`. It contains no secret. The agent alone writes it,
 * because root must not write into a folder of another user.
 */
export interface RunRecord {
  pid: number;
  /** When the process started, which distinguishes it from a later one with the same id. */
  started: string | null;
  /** Of the program that runs. */
  sha256: string;
  linked: boolean;
  /** The last program that has linked. */
  proven: string | null;
  trial: Trial | null;
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
 * Replaces the record, so that a crash leaves the old one or the new one. Where it cannot be written, the agent works
 * without it.
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

/** When a process started, in ticks since the start of the machine (proc_pid_stat(5)); null if it does not run. */
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
 * Whether the recorded process is the agent and runs. The agent's user owns the folder, and must not be able to have
 * root signal a process of someone else. The owner of the file proves nothing: it can be a link to a file of root.
 */
export function isRunning(stateDir: string, { pid, started }: RunRecord): boolean {
  if (started === null || startOf(pid) !== started) return false;
  const ownerOf = (path: string) => statSync(path, { throwIfNoEntry: false })?.uid;
  const owner = ownerOf(stateDir);
  return owner !== undefined && ownerOf(`/proc/${pid}`) === owner;
}
