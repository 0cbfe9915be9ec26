import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { readTokens, type StoredTokens, storeTokens } from '../../cli/stored.ts';

/** A keychain as a machine without a desktop does not have it. `isReadable`: false as after it was locked. */
const keychain = { entries: new Map<string, string>(), isReadable: true };

class Entry {
  readonly #profile: string;

  constructor(_service: string, profile: string) {
    this.#profile = profile;
  }

  setPassword(secret: string): void {
    keychain.entries.set(this.#profile, secret);
  }

  getPassword(): string | null {
    if (!keychain.isReadable) throw new Error('locked');
    return keychain.entries.get(this.#profile) ?? null;
  }

  deletePassword(): void {
    keychain.entries.delete(this.#profile);
  }
}

// The command line requires the package where it is needed, because it is native and optional.
const require = createRequire(import.meta.url);
const path = require.resolve('@napi-rs/keyring');
const said: string[] = [];
let folder = '';

beforeEach(() => {
  require.cache[path] = { id: path, filename: path, loaded: true, exports: { Entry } } as NodeJS.Module;
  folder = mkdtempSync(join(tmpdir(), 'branchgate-tokens-'));
  vi.stubEnv('XDG_CONFIG_HOME', folder);
  vi.spyOn(process.stderr, 'write').mockImplementation((text) => said.push(String(text)) > 0);
  said.length = 0;
});
afterEach(() => {
  delete require.cache[path];
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
  rmSync(folder, { recursive: true });
});

const tokens = (access_token: string): StoredTokens => ({
  url: 'https://api.example.com',
  access_token,
  refresh_token: null,
});
const file = () => JSON.parse(readFileSync(join(folder, 'branchgate/tokens.json'), 'utf8'));

test('tokens that the keychain stores no longer are in the file, which is said, and not in the keychain', () => {
  storeTokens('work', tokens('one'));
  expect(file()).toEqual({ work: { keychain: true } });
  expect(readTokens('work')).toEqual(tokens('one'));
  expect(said).toEqual([]);

  keychain.isReadable = false;
  storeTokens('work', tokens('two'));
  expect(file()).toEqual({ work: tokens('two') });
  expect(said).toEqual([expect.stringContaining(join(folder, 'branchgate/tokens.json'))]);
  expect(said[0]).not.toContain('two');

  // A first sign-in says where the tokens are by itself.
  storeTokens('home', tokens('three'));
  expect(file()).toMatchObject({ home: tokens('three') });
  expect(said).toHaveLength(1);
  expect([...keychain.entries.keys()]).toEqual([]);
});
