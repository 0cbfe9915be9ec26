import { CommandError } from '../cli/exit-codes.ts';
import { readSettings } from '../edge/settings.ts';

const PLACEHOLDER_KEY = `k1:${Buffer.alloc(32).toString('base64')}`;

/** In the place of the secrets, whose values only the secrets file has. */
export const PLACEHOLDERS = {
  CREDENTIAL_KEYS: PLACEHOLDER_KEY,
  JWT_KEYS: PLACEHOLDER_KEY,
  PLATFORM_SECRET: '-'.repeat(32),
};

/** @throws CommandError that names the settings with which the Worker would not start */
export function checkSettings(vars: Readonly<Record<string, string>>): void {
  try {
    readSettings({ ...vars, ...PLACEHOLDERS });
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new CommandError(
      'usage',
      `The gateway has ${reason}. Give them with --var NAME=value, or correct them in the dashboard where they were set there; docs/operating.md lists all.`,
    );
  }
}
