import { InvalidArgumentError } from 'commander';
import { devFolder } from './stack/dev-folder.ts';
import { Refusal, readSettings } from './stack/settings.ts';

/** Parses an option in seconds. */
export function wholeSeconds(text: string): number {
  if (!/^\d{1,9}$/.test(text)) throw new InvalidArgumentError('Give a whole number of seconds.');
  return Number(text);
}

/** The settings in the environment that concern the identity provider, and the folder with its keys. */
export function readProviderSettings() {
  const { DEV_DIR, environment } = readSettings(process.env);
  return { stateDir: devFolder(DEV_DIR).identityProvider, serviceName: environment.SERVICE_NAME };
}

/** Runs a command. A refusal is printed in one line. */
export async function runCommand(command: () => Promise<unknown>): Promise<void> {
  try {
    await command();
  } catch (error) {
    console.error(error instanceof Refusal ? `branchgate: ${error.message}` : error);
    process.exit(1);
  }
}
