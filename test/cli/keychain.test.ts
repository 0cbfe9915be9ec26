import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';

const STORED = join(import.meta.dirname, '../../cli/stored.ts');
/** The Secret Service of GNOME, which opens its keychain with the password on its input. */
const NEEDED = ['dbus-run-session', 'gnome-keyring-daemon'];

const isInstalled = (program: string) => spawnSync(program, ['--version']).error === undefined;

const SECRET = 'secret-access-token';
const STORE = `import { storeTokens } from '${STORED}';
  console.log(storeTokens('work', { url: 'https://api.example.com', access_token: '${SECRET}', refresh_token: null }));`;
const READ = `import { readTokens, removeTokens } from '${STORED}';
  console.log(readTokens('work').access_token); removeTokens('work'); console.log(readTokens('work'));`;

test('a keychain keeps the tokens for the next command, and the file has none of them', ({ skip }) => {
  const missing = NEEDED.filter((program) => !isInstalled(program));
  skip(missing.length > 0, `not installed: ${missing.join(', ')}`);
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-keychain-'));
  try {
    for (const [name, text] of [
      ['store.mjs', STORE],
      ['read.mjs', READ],
    ] as const)
      writeFileSync(join(folder, name), text);
    const script = `printf password | gnome-keyring-daemon --unlock --components=secrets > started &&
      "$NODE" store.mjs && cp branchgate/tokens.json kept.json && "$NODE" read.mjs`;
    const output = execFileSync('dbus-run-session', ['--', 'sh', '-c', script], {
      cwd: folder,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
      env: {
        PATH: process.env.PATH,
        HOME: folder,
        XDG_RUNTIME_DIR: folder,
        XDG_CONFIG_HOME: folder,
        NODE: process.execPath,
      },
    });
    expect(output).toBe(`the keychain of this user\n${SECRET}\nnull\n`);
    expect(JSON.parse(readFileSync(join(folder, 'kept.json'), 'utf8'))).toEqual({ work: { keychain: true } });
  } finally {
    // The daemon ends with the session, and may remove its files at this moment.
    rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  }
});
