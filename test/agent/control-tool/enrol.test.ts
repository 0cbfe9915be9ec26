import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { enrolCommand } from '../../../agent/control-tool/enrol.ts';
import { GatewayError, RefusedError } from '../../../agent/control-tool/exit-codes.ts';
import { writeIdentity } from '../../../agent/link/identity.ts';

const KEY = { kty: 'OKP', crv: 'Ed25519', x: 'x'.repeat(43), d: 'd'.repeat(43) } as const;
/** Nothing listens on port 1. */
const WORDS = ['--gateway', 'http://127.0.0.1:1', '--token', 't'.repeat(43)];

let stateDir: string;
beforeEach(async () => {
  stateDir = await mkdtemp(join(tmpdir(), 'branchgate-enrol-'));
  vi.stubEnv('STATE_DIR', stateDir);
});
afterEach(async () => {
  vi.unstubAllEnvs();
  await rm(stateDir, { recursive: true });
});

const enrolWith = (...words: string[]) => enrolCommand().parseAsync([...WORDS, ...words], { from: 'user' });

test('an enrolled host is refused, also with a damaged identity', async () => {
  await writeIdentity(stateDir, { host_id: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f', private_key: KEY });
  await expect(enrolWith()).rejects.toThrow('already enrolled');
  await expect(enrolWith()).rejects.toThrow(RefusedError);
  await writeFile(join(stateDir, 'host.json'), '{');
  await expect(enrolWith()).rejects.toThrow(RefusedError);
});

test('an unreachable gateway is reported as such, also for an enrolled host with --force', async () => {
  await expect(enrolWith()).rejects.toThrow(GatewayError);
  await writeIdentity(stateDir, { host_id: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f', private_key: KEY });
  await expect(enrolWith('--force')).rejects.toThrow(GatewayError);
});
