import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import { CommandLine } from '../support/command-line.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';
import { clientPackages, failuresOf, KNOWN } from './client-packages.ts';

const TENANT = 'clients';

/** Installs 150 packages that nothing else needs, so it runs at night. */
describe.runIf(IS_NIGHTLY)('clients', () => {
  let cli: CommandLine;
  let packages: string;
  beforeAll(async () => {
    packages = await clientPackages();
    const api = await ownerOf(TENANT);
    const project = await api.project('Clients');
    const settings = { BRANCHGATE_URL: inject('stack').url, BRANCHGATE_PROJECT: project.id };
    const stack = JSON.parse(readFileSync(join(inject('stack').devDir, 'stack.json'), 'utf8'));
    cli = await CommandLine.open({
      ...settings,
      SQL_PORT: String(stack.sql_port),
      BRANCHGATE_TOKEN: await tokenOf({ tenant: TENANT }),
    });
  });
  afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

  /** Runs a program with a branch of its own. @returns the lines that it prints */
  async function onBranch(file: string, ...options: string[]): Promise<Record<string, string>[]> {
    const program = [process.execPath, join(packages, file)];
    const { code, stdout, stderr } = await cli.run('exec', '--ephemeral', ...options, '--', ...program);
    expect(code, stderr).toBe(0);
    const lines = stdout.trim().split('\n');
    return lines.map((line) => JSON.parse(line) as Record<string, string>);
  }

  test.each([['owner'], ['read_only']])(
    'end their own statements, and connect 300 times in a minute, as %s',
    async (role) => {
      const results = await onBranch('time-limits.mjs', '--role', role);
      expect(results).toHaveLength(10);
      expect(results.filter(({ result }) => result !== 'ok')).toEqual([]);
    },
  );

  test('connect, migrate, query and prepare on both ports, as docs/clients.md says', async () => {
    const results = await onBranch('clients.mjs', '--role', 'owner');
    expect(results).toHaveLength(28);
    expect(failuresOf(results)).toEqual(KNOWN);
  });
});

/** Its lease is a minute, for which no other test has to wait. */
test.runIf(IS_NIGHTLY)(
  'a killed exec --ephemeral leaves nothing after its lease',
  async () => {
    const api = await ownerOf('killed');
    const project = await api.project('Killed');
    const settings = { BRANCHGATE_URL: inject('stack').url, BRANCHGATE_PROJECT: project.id };
    const cli = await CommandLine.open({
      ...settings,
      BRANCHGATE_TOKEN: await tokenOf({ tenant: 'killed' }),
    });
    const { child, result } = cli.start(['exec', '--ephemeral', '--', 'sleep', '300']);
    const branches = async () => (await cli.json<unknown[]>('branch', 'list')).length;
    await expect.poll(branches, { timeout: 30_000 }).toBe(2);
    process.kill(-(child.pid ?? 0), 'SIGKILL');
    await result;
    expect(await branches()).toBe(2);
    await expect.poll(branches, { timeout: 90_000, interval: 2000 }).toBe(1);
    rmSync(cli.folder, { recursive: true });
  },
  180_000,
);
