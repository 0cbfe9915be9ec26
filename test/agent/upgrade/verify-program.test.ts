import { generateKeyPairSync, type KeyObject, sign } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { sha256Of, verifyProgram } from '../../../agent/upgrade/program-file.ts';

const PROGRAM = Buffer.from('console.log(1)');
const OTHER = Buffer.from('console.log(2)');

let dir: string;
beforeAll(() => {
  dir = mkdtempSync(join(tmpdir(), 'branchgate-verify-'));
});
afterAll(() => rmSync(dir, { recursive: true }));

function signed(bytes: Buffer, privateKey: KeyObject, publicKey: KeyObject) {
  const files = { signatureFile: join(dir, 'signature'), publicKeyFile: join(dir, 'key.pem') };
  writeFileSync(files.signatureFile, sign(null, bytes, privateKey));
  writeFileSync(files.publicKeyFile, publicKey.export({ type: 'spki', format: 'pem' }));
  return files;
}

test('a checksum admits exactly its program, also as sha256sum prints it', async () => {
  const sha256 = sha256Of(PROGRAM);
  await verifyProgram(PROGRAM, { sha256 });
  await verifyProgram(PROGRAM, { sha256: `${sha256.toUpperCase()}  agent.mjs\n` });
  await expect(verifyProgram(OTHER, { sha256 })).rejects.toThrow('checksum');
  for (const wrong of ['', sha256.slice(1), `${sha256}0`, `x${sha256}`])
    await expect(verifyProgram(PROGRAM, { sha256: wrong })).rejects.toThrow('64 hexadecimal');
});

test('a signature admits exactly its program and key', async () => {
  const { privateKey, publicKey } = generateKeyPairSync('ed25519');
  await verifyProgram(PROGRAM, signed(PROGRAM, privateKey, publicKey));
  await expect(verifyProgram(OTHER, signed(PROGRAM, privateKey, publicKey))).rejects.toThrow('signature');
  const otherKey = generateKeyPairSync('ed25519').privateKey;
  await expect(verifyProgram(PROGRAM, signed(PROGRAM, otherKey, publicKey))).rejects.toThrow('signature');
});

test('another kind of key is refused', async () => {
  const { publicKey } = generateKeyPairSync('ec', { namedCurve: 'prime256v1' });
  const { privateKey } = generateKeyPairSync('ed25519');
  await expect(verifyProgram(PROGRAM, signed(PROGRAM, privateKey, publicKey))).rejects.toThrow('Ed25519');
});
