import { type ChildProcess, spawn } from 'node:child_process';
import { constants } from 'node:os';
import { CommandError, type ExitName } from './exit-codes.ts';

const SIGNALS = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT'] as const;

/** Keeps this process alive on a signal that ends its child, and passes the signal on. */
function passSignals(child: ChildProcess): () => void {
  const listeners = SIGNALS.map((signal) => {
    // A terminal sends Ctrl-C to every process in the foreground, the child included.
    const isSentTwice = process.stdin.isTTY && (signal === 'SIGINT' || signal === 'SIGQUIT');
    const listener = () => {
      if (!isSentTwice) child.kill(signal);
    };
    process.on(signal, listener);
    return () => process.off(signal, listener);
  });
  return () => {
    for (const remove of listeners) remove();
  };
}

const START_FAILURES: Partial<Record<string, { exit: ExitName; problem: string }>> = {
  ENOENT: { exit: 'noProgram', problem: 'was not found. Check its path and PATH.' },
  EACCES: { exit: 'notExecutable', problem: 'is not executable. Run chmod +x.' },
};

/**
 * Runs a program with the terminal of this process.
 * @param output where its standard output goes
 * @returns its exit code, as a shell reports it
 */
export async function runChild(
  program: string,
  args: readonly string[],
  env: NodeJS.ProcessEnv,
  output: 'stdout' | 'stderr' = 'stdout',
): Promise<number> {
  const child = spawn(program, args, { stdio: ['inherit', output === 'stdout' ? 1 : 2, 2], env });
  const ignoreSignals = passSignals(child);
  try {
    return await new Promise((resolve, reject) => {
      child.once('error', (error: NodeJS.ErrnoException) => {
        const { code = '' } = error;
        const { exit = 'notExecutable', problem = `cannot be started (${code}).` } =
          START_FAILURES[code] ?? {};
        reject(new CommandError(exit, `${program} ${problem}`));
      });
      child.once('close', (code, signal) => {
        resolve(code ?? 128 + (signal ? constants.signals[signal] : 0));
      });
    });
  } finally {
    ignoreSignals();
  }
}
