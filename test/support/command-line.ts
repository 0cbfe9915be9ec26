import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { bundleCli, MAIN_FILE } from '../../dev/build/cli.ts';
import { oncePerRun } from './run-folder.ts';
import { temporaryFolder } from './stack/stack.ts';

export interface CliResult {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** The built command line, in a folder of its own with an environment of its own. */
export class CommandLine {
  readonly folder = temporaryFolder();
  readonly #file: string;
  readonly #env: Record<string, string>;

  private constructor(file: string, env: Record<string, string>) {
    this.#file = file;
    this.#env = env;
  }

  static async open(env: Record<string, string>): Promise<CommandLine> {
    return new CommandLine(join(await oncePerRun('command-line', bundleCli), MAIN_FILE), env);
  }

  get environment(): Record<string, string> {
    const { PATH = '' } = process.env;
    // A command that is killed leaves its temporary files.
    return { PATH, HOME: this.folder, XDG_CONFIG_HOME: this.folder, TMPDIR: this.folder, ...this.#env };
  }

  /** The words that run it. */
  get words(): string[] {
    return [process.execPath, this.#file];
  }

  /** Starts it as the leader of a process group, with nothing to read. */
  start(
    args: readonly string[],
    env: Record<string, string> = {},
  ): { child: ChildProcess; result: Promise<CliResult> } {
    const [node = '', file = ''] = this.words;
    const child = spawn(node, [file, ...args], {
      cwd: this.folder,
      env: { ...this.environment, ...env },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    const texts = { stdout: '', stderr: '' };
    for (const name of ['stdout', 'stderr'] as const)
      child[name].setEncoding('utf8').on('data', (text: string) => {
        texts[name] += text;
      });
    return { child, result: once(child, 'close').then(([code]) => ({ code, ...texts })) };
  }

  run(...args: string[]): Promise<CliResult> {
    return this.start(args).result;
  }

  /** The records that a command prints with `--json`. @throws Error with what it printed when it fails */
  async json<T = Record<string, unknown>>(...args: string[]): Promise<T> {
    const { code, stdout, stderr } = await this.run(...args, '--json');
    if (code !== 0) throw new Error(`${args.join(' ')}: ${code} ${stderr}`);
    return JSON.parse(stdout) as T;
  }
}
