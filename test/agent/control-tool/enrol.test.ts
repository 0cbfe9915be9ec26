import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { runControlTool } from '../../../agent/control-tool/control-tool.ts';
import { enrolCommand } from '../../../agent/control-tool/enrol.ts';
import { EXIT_CODES, GatewayError, RefusedError } from '../../../agent/control-tool/exit-codes.ts';
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

test.each([
  [401, EXIT_CODES.refused.code, 'branchgate host set --new-machine'],
  [422, EXIT_CODES.refused.code, 'copy the whole token again'],
  [503, EXIT_CODES.unreachable.code, 'check its log'],
])('a gateway that responds with %i ends the command with %i', async (status, exitCode, remedy) => {
  const gateway = createServer((_request, response) => response.writeHead(status).end());
  await new Promise<void>((resolve) => gateway.listen(0, '127.0.0.1', resolve));
  const { port } = gateway.address() as AddressInfo;
  const output = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
  try {
    const words = ['enrol', '--gateway', `http://127.0.0.1:${port}`, '--token', 't'.repeat(43)];
    expect(await runControlTool(words, null)).toBe(exitCode);
    expect(output.mock.calls.join('')).toContain(remedy);
  } finally {
    output.mockRestore();
    gateway.closeAllConnections();
    await new Promise((resolve) => gateway.close(resolve));
  }
});

test('the help names the source of the settings', async () => {
  const output = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  try {
    expect(await runControlTool(['--help'], null)).toBe(EXIT_CODES.ok.code);
    expect(output.mock.calls.join('')).toContain('. /etc/branchgate/agent.env');
  } finally {
    output.mockRestore();
  }
});
