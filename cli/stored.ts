import { chmodSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { dirname, join } from 'node:path';
import { CommandError } from './exit-codes.ts';
import { readFromKeychain, removeFromKeychain, storeInKeychain } from './keychain.ts';
import { say } from './output.ts';

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

/** The entry of a profile in the file, if its tokens are in the keychain. */
interface KeychainEntry {
  keychain: true;
}

const DEFAULT_PROFILE = 'default';
const profilesFile = () => join(folder(), 'profiles.json');
const tokensFile = () => join(folder(), 'tokens.json');

export const readProfiles = (): Profiles =>
  readJson<Profiles>(profilesFile()) ?? { current: DEFAULT_PROFILE, profiles: {} };

export const storeProfiles = (profiles: Profiles): void => writeJson(profilesFile(), profiles);

const readEntries = () => readJson<Record<string, StoredTokens | KeychainEntry>>(tokensFile()) ?? {};

export function readTokens(profile: string): StoredTokens | null {
  const entry = readEntries()[profile] ?? null;
  if (entry === null || !('keychain' in entry)) return entry;
  const secret = readFromKeychain(profile);
  return secret === null ? null : (JSON.parse(secret) as StoredTokens);
}

/**
 * Stores the tokens in the keychain of the operating system, or in a file that only this user can read.
 * @param choice by default as the profile has them already, otherwise the keychain if there is one
 * @returns where they are
 */
export function storeTokens(profile: string, tokens: StoredTokens, choice?: 'file' | 'keychain'): string {
  const { [profile]: entry, ...others } = readEntries();
  const isInFile = entry !== undefined && !('keychain' in entry);
  const wanted = choice ?? (isInFile ? 'file' : 'keychain');
  const wasInKeychain = entry !== undefined && !isInFile;
  const isStored = wanted === 'keychain' && storeInKeychain(profile, JSON.stringify(tokens));
  writeJson(tokensFile(), { ...others, [profile]: isStored ? { keychain: true } : tokens }, 0o600);
  if (isStored) return 'the keychain of this user';
  const file = `${tokensFile()}, which only you can read`;
  if (wasInKeychain && wanted === 'file') removeFromKeychain(profile);
  else if (wasInKeychain)
    say(`The keychain could not store the tokens of the profile ${profile} again. They are in ${file}.`);
  return file;
}

/** For a person. */
export function whereTokensAre(profile: string): string {
  const entry = readEntries()[profile];
  if (entry === undefined) return 'none are stored';
  return 'keychain' in entry ? 'in the keychain of this user' : `in ${tokensFile()}`;
}

export function removeTokens(profile: string): void {
  const { [profile]: entry, ...others } = readEntries();
  if (entry && 'keychain' in entry) removeFromKeychain(profile);
  writeJson(tokensFile(), others, 0o600);
}
