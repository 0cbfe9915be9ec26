import { chmodSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { CommandError } from './exit-codes.ts';

/** The folder of this user's profiles (XDG Base Directory Specification). */
const folder = () => join(process.env.XDG_CONFIG_HOME || join(homedir(), '.config'), 'branchgate');

/** A JSON file; null when it does not exist. @throws CommandError when it is damaged, without its content */
export function readJson<T>(path: string): T | null {
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw new CommandError('failed', `${path} cannot be read: correct its permissions.`);
  }
  try {
    return JSON.parse(text) as T;
  } catch {
    throw new CommandError('failed', `${path} is damaged: correct or remove it.`);
  }
}

/** Replaces the file, so that another process reads the old content or the new one. */
export function writeJson(path: string, value: unknown, mode = 0o644): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
  const temporary = `${path}.${process.pid}.new`;
  writeFileSync(temporary, `${JSON.stringify(value, null, 2)}\n`, { mode });
  chmodSync(temporary, mode);
  renameSync(temporary, path);
}

interface Profiles {
  current: string;
  profiles: Record<string, { url: string }>;
}

/** What a sign-in stores. It is valid for the address of its profile only. */
export interface StoredTokens {
  url: string;
  access_token: string;
  refresh_token: string | null;
}

const DEFAULT_PROFILE = 'default';
const profilesFile = () => join(folder(), 'profiles.json');
export const tokensFile = () => join(folder(), 'tokens.json');

export const readProfiles = (): Profiles =>
  readJson<Profiles>(profilesFile()) ?? { current: DEFAULT_PROFILE, profiles: {} };

export const storeProfiles = (profiles: Profiles): void => writeJson(profilesFile(), profiles);

export const readTokens = (profile: string): StoredTokens | null =>
  readJson<Record<string, StoredTokens>>(tokensFile())?.[profile] ?? null;

/** Only this user can read the file. @param tokens null removes them */
export function storeTokens(profile: string, tokens: StoredTokens | null): void {
  const { [profile]: _, ...others } = readJson<Record<string, StoredTokens>>(tokensFile()) ?? {};
  writeJson(tokensFile(), tokens ? { ...others, [profile]: tokens } : others, 0o600);
}
