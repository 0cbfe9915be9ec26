import { execFile } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { chmodSync, chownSync, existsSync, lstatSync, mkdirSync, readFileSync, rmdirSync } from 'node:fs';
import { rename, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';

/** Why a step failed, as the exit code reports it. */
export type Kind = 'usage' | 'refused' | 'unreachable' | 'failed';

/** A step cannot be done. The message says why, then what to do. */
export class StepFailure extends Error {
  override readonly name = 'StepFailure';
  readonly kind: Kind;

  constructor(kind: Kind, message: string) {
    super(message);
    this.kind = kind;
  }
}

export interface Ran {
  code: number;
  stdout: string;
  stderr: string;
}

export interface RunOptions {
  /** Runs as this user instead of as root. */
  user?: string;
  input?: string | undefined;
  env?: Record<string, string>;
  /** Milliseconds after which it is ended; 0: never. */
  within?: number;
}

/** Who owns a file, and its mode. */
export interface Placing {
  mode?: number;
  owner?: string;
}

/** What a step did, for its report. */
export interface Report {
  changes: string[];
  notes: string[];
}

interface MachineOptions {
  /** Folder that stands for `/`, for tests. Commands run outside of it. */
  root?: string;
  isDryRun?: boolean;
  /** Called before each change. Set by tests only, which end the run there. */
  onAct?: (what: string) => void;
}

/** Time for one command, a restart of a server after a crash included. */
const COMMAND_WITHIN_MS = 600_000;

/**
 * The machine that joins: its files and commands. A change is made and reported, or, in a dry run, only
 * reported. Every change of a file is atomic, so that a kill leaves the old file or the new one.
 */
export class Machine {
  readonly #root: string;
  readonly isDryRun: boolean;
  readonly #onAct: (what: string) => void;
  report: Report = { changes: [], notes: [] };

  constructor({ root = '', isDryRun = false, onAct = () => {} }: MachineOptions = {}) {
    this.#root = root;
    this.isDryRun = isDryRun;
    this.#onAct = onAct;
  }

  /** Where a path of the machine is. */
  at = (path: string): string => join('/', this.#root, path);

  exists = (path: string): boolean => existsSync(this.at(path));

  /** The text of a file; null if it does not exist. */
  read(path: string): string | null {
    try {
      return readFileSync(this.at(path), 'utf8');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
      throw error;
    }
  }

  /** Says something that the operator should know. */
  note(sentence: string): void {
    this.report.notes.push(sentence);
  }

  /**
   * Makes a change, and reports it once it is made.
   * @param sentence in the past, for instance "restarted pgbouncer"
   * @param act returns false if it changed nothing
   */
  async change(sentence: string, act: () => Promise<unknown>): Promise<void> {
    if (!this.isDryRun) {
      this.#onAct(sentence);
      if ((await act()) === false) return;
    }
    this.report.changes.push(sentence);
  }

  /** Runs a command that changes nothing. A missing command has the code 127. */
  query(command: string, args: readonly string[], options: RunOptions = {}): Promise<Ran> {
    const { user, input = '', env, within = COMMAND_WITHIN_MS } = options;
    const [file, ...words] = user ? ['runuser', '-u', user, '--', command, ...args] : [command, ...args];
    return new Promise((resolve) => {
      const child = execFile(
        file ?? '',
        words,
        {
          cwd: '/',
          env: { ...process.env, LC_ALL: 'C.UTF-8', PATH: `${process.env.PATH}:/usr/sbin:/sbin`, ...env },
          timeout: within,
          maxBuffer: 16 * 2 ** 20,
        },
        (error, stdout, stderr) => {
          const code = error ? (typeof error.code === 'number' ? error.code : 127) : 0;
          resolve({ code, stdout, stderr });
        },
      );
      // A command that does not read its input ends before it is written.
      child.stdin?.on('error', () => {});
      child.stdin?.end(input);
    });
  }

  /** Runs a command that changes something. @throws StepFailure with the last line of its error output */
  async run(sentence: string, command: string, args: readonly string[], options: RunOptions = {}) {
    await this.change(sentence, async () => {
      const ran = await this.query(command, args, options);
      if (ran.code !== 0)
        throw new StepFailure('failed', `${command} ${args[0] ?? ''} failed: ${lastLine(ran)}`);
    });
  }

  /** Makes a folder with its parents, and sets its owner and mode. */
  async makeFolder(path: string, { mode = 0o755, owner = 'root' }: Placing = {}): Promise<void> {
    if (this.#isPlaced(path, { mode, owner })) return;
    await this.change(`made the folder ${path}`, async () => {
      mkdirSync(this.at(path), { recursive: true });
      this.#place(this.at(path), { mode, owner });
    });
  }

  /** Writes a file, without a report. @throws Error when the disk refuses */
  async put(path: string, content: string, placing: Placing = {}): Promise<void> {
    const { mode = 0o644, owner = 'root' } = placing;
    const target = this.at(path);
    const temporary = `${target}.${randomBytes(4).toString('hex')}.new`;
    this.#onAct(`put ${path}`);
    mkdirSync(dirname(target), { recursive: true });
    try {
      await writeFile(temporary, content, { mode: 0o600, flush: true });
      this.#place(temporary, { mode, owner });
      this.#onAct(`rename ${path}`);
      await rename(temporary, target);
    } finally {
      await rm(temporary, { force: true });
    }
  }

  async move(from: string, to: string): Promise<void> {
    this.#onAct(`move ${from}`);
    await rename(this.at(from), this.at(to));
  }

  async remove(path: string): Promise<void> {
    this.#onAct(`remove ${path}`);
    await rm(this.at(path), { force: true, recursive: true });
  }

  /** Removes a folder, unless something is in it. */
  removeEmpty(path: string): void {
    try {
      rmdirSync(this.at(path));
    } catch (error) {
      if (!['ENOTEMPTY', 'ENOENT'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error;
    }
  }

  /** Whether a file has this owner and mode. */
  isPlaced(path: string, { mode = 0o644, owner = 'root' }: Placing = {}): boolean {
    return this.#isPlaced(path, { mode, owner });
  }

  #isPlaced(path: string, { mode, owner }: Required<Placing>): boolean {
    const found = lstatSync(this.at(path), { throwIfNoEntry: false });
    if (!found || (found.mode & 0o7777) !== mode) return false;
    return !isRoot() || found.uid === this.#idsOf(owner).uid;
  }

  #place(target: string, { mode, owner }: Required<Placing>): void {
    chmodSync(target, mode);
    if (!isRoot()) return;
    const { uid, gid } = this.#idsOf(owner);
    chownSync(target, uid, gid);
  }

  /** @throws StepFailure when the user does not exist */
  #idsOf(user: string): { uid: number; gid: number } {
    const ids = this.users().find(({ name }) => name === user);
    if (!ids) throw new StepFailure('refused', `the user ${user} does not exist: install PostgreSQL first`);
    return ids;
  }

  users(): { name: string; uid: number; gid: number }[] {
    return (this.read('/etc/passwd') ?? '').split('\n').flatMap((line) => {
      const [name, , uid, gid] = line.split(':');
      return name && gid ? [{ name, uid: Number(uid), gid: Number(gid) }] : [];
    });
  }
}

const isRoot = () => process.getuid?.() === 0;

export const sha256 = (content: string): string => createHash('sha256').update(content).digest('hex');

export const lastLine = ({ stderr, stdout }: Ran): string =>
  (stderr.trim() || stdout.trim() || 'it printed nothing').split('\n').at(-1) ?? '';
