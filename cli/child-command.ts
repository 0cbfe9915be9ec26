import { CommandError, type ExitName } from './exit-codes.ts';

const SET_HERE = ['DATABASE_URL', 'DIRECT_URL'] as const;

/**
 * A URL of another database would reach the child if a later step failed to replace it.
 * @param command the name of the command that starts the child
 * @throws CommandError
 */
export function refuseInherited(command: string): void {
  const inherited = SET_HERE.filter((name) => process.env[name] !== undefined);
  if (inherited.length === 0) return;
  const unset = inherited.map((name) => `-u ${name}`).join(' ');
  throw new CommandError(
    'usage',
    `${inherited.join(' and ')} is already set in the environment. Unset it first: env ${unset} branchgate ${command} …`,
  );
}

const EXIT_OF_SIGNAL: Readonly<Record<string, ExitName>> = {
  SIGINT: 'interrupted',
  SIGTERM: 'terminated',
  SIGHUP: 'hungUp',
};

/** Is aborted by the signals that end a command, which then cleans up. */
export function stopSignal(): AbortSignal {
  const stop = new AbortController();
  for (const [signal, exit] of Object.entries(EXIT_OF_SIGNAL))
    process.on(signal, () => stop.abort(new CommandError(exit, 'Interrupted.')));
  return stop.signal;
}
