import { InvalidArgumentError } from 'commander';
import { devFolder } from './stack/dev-folder.ts';
import { Refusal } from './stack/refusal.ts';
import { readSettings } from './stack/settings.ts';

/** For options of the commands beside `npm start`. */
export function wholeSeconds(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('It has to be a whole number of seconds.');
  return Number(text);
}

/** Settings of the shell, and where the identity provider keeps its keys. */
export function readProviderSettings() {
  const { DEV_DIR, environment } = readSettings(process.env);
  return { stateDir: devFolder(DEV_DIR).identityProvider, serviceName: environment.SERVICE_NAME };
}

/** Runs a command; what it refuses is said in one line. */
export async function runCommand(command: () => Promise<unknown>): Promise<void> {
  try {
    await command();
  } catch (error) {
    console.error(error instanceof Refusal ? `branchgate: ${error.message}` : error);
    process.exit(1);
  }
}
