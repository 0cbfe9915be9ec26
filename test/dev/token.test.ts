import { execFile } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { keyDocument } from '../../dev/identity-provider/key-ring.ts';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { firstByDay } from '../support/nightly.ts';
import { verifyPaseto } from '../support/sign-in/verify-paseto.ts';

let devDir: string;
beforeAll(() => {
  devDir = mkdtempSync(join(tmpdir(), 'branchgate-token-'));
});
afterAll(() => rmSync(devDir, { recursive: true }));

const run = (file: string, words: string[], env: Record<string, string> = {}) =>
  promisify(execFile)(process.execPath, [join(ROOT, 'dev', file), ...words], {
    env: { DEV_DIR: devDir, ...env },
  });
const token = async (...words: string[]) => (await run('token.ts', words)).stdout.trim();
const ADA = ['--email', 'ada@example.com', '--tenant', 'acme', '--role', 'owner'];
const verify = async (text: string) =>
  verifyPaseto(text, await keyDocument(devFolder(devDir).identityProvider, new Date()));

test('the token has the claims of specification 2.8 and the key of the local provider', async () => {
  const { claims, footer } = await verify(await token(...ADA, '--expires-in', '60'));
  expect(claims).toEqual({
    gid: expect.any(String),
    email: 'ada@example.com',
    role: 'owner',
    scp: ['branchgate:read', 'branchgate:write'],
    iat: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
    nbf: claims.iat,
    exp: expect.any(String),
    ctx: { tenant_id: 'acme' },
  });
  expect(Date.parse(String(claims.exp)) - Date.parse(String(claims.iat))).toBe(60_000);
  expect(footer).toMatchObject({ alg: 'v4.public', typ: 'paseto' });
});

test('a token with one scope; the user depends on the address, not on its case', async () => {
  const { claims: read } = await verify(await token(...ADA, '--scope', 'read'));
  expect(read.scp).toEqual(['branchgate:read']);
  const { claims: again } = await verify(await token('--email', 'ADA@example.com', ...ADA.slice(2)));
  expect(again.gid).toBe(read.gid);
  const { claims: other } = await verify(await token('--email', 'bob@example.com', ...ADA.slice(2)));
  expect(other.gid).not.toBe(read.gid);
});

test('after dev:rotate-key, tokens name the new key', async () => {
  const before = await verify(await token(...ADA));
  const { stdout } = await run('rotate-key.ts', ['--withdraw-after', '60']);
  const after = await verify(await token(...ADA));
  expect(after.footer.kid).not.toBe(before.footer.kid);
  expect(stdout).toContain(after.footer.kid);
});

test.each(
  firstByDay(1, [
    { words: ADA.slice(0, 4), message: "required option '--role <role>' not specified" },
    { words: [...ADA, '--scope', 'all'], message: 'Allowed choices are read, write' },
    { words: [...ADA, '--expires-in', 'soon'], message: 'whole number of seconds' },
  ]),
)('$message', async ({ words, message }) => {
  await expect(run('token.ts', words)).rejects.toMatchObject({
    code: 1,
    stdout: '',
    stderr: expect.stringContaining(message),
  });
});

test('--help lists the options', async () => {
  expect((await run('token.ts', ['--help'])).stdout).toContain('--tenant <id>');
});
