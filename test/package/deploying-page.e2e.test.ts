import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import { agentPackage } from '../support/debian.ts';
import { bootDebian, canBoot, type DebianSystem } from '../support/debian-system.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const PAGE = readFileSync(join(ROOT, 'docs/deploying.md'), 'utf8');
const HOST_NAME = 'db1.example.com';
const DISK_BYTES = 3 * 2 ** 30;
const SET_UP_WITHIN_MS = 3_600_000;

/** The shell blocks below a heading, as they stand. */
const blocksBelow = (heading: string) => {
  const [, section = ''] = PAGE.split(`\n### ${heading}\n`);
  return [...(section.split(/\n##+ /)[0] ?? '').matchAll(/^```sh\n(.*?)^```$/gms)].map(
    ([, block = '']) => block,
  );
};

/**
 * docs/deploying.md, block by block, from an empty Debian to a branch. The gateway is that of the local stack, so its
 * address is another one than on the page.
 */
describe.runIf(IS_NIGHTLY && canBoot())('the page about deploying', () => {
  let system: DebianSystem;
  let stack: Stack;
  let folder: string;
  let line = '';

  beforeAll(async () => {
    stack = await startStack({ env: { LIMIT_PUBLIC_PER_MINUTE: '100000' } });
    system = await bootDebian();
    folder = mkdtempSync(join(tmpdir(), 'branchgate-operator-'));
    await system.addDisk('/dev/nvme1n1', DISK_BYTES);
    const file = await agentPackage();
    cpSync(file, system.at('/root/branchgate-agent_1.0.0_amd64.deb'));
    expect(PAGE).toContain(basename('/root/branchgate-agent_1.0.0_amd64.deb'));
    appendFileSync(system.at('/etc/hosts'), `127.0.0.1 ${HOST_NAME}\n`);
  }, SET_UP_WITHIN_MS);
  afterAll(async () => {
    await system?.stop();
    await stack?.stop();
    if (folder) rmSync(folder, { recursive: true });
  });

  /** Types a block on the machine, as root in its home, and answers apt's question. */
  const onMachine = (block: string) =>
    system.must('sh', '-c', `cd /root && yes | bash -e -c "$1" 2>&1`, 'type', block);

  test('prepares the volume and installs the package', { timeout: SET_UP_WITHIN_MS }, async () => {
    const blocks = [...blocksBelow('The volume'), ...blocksBelow('The package')];
    expect(blocks).toHaveLength(2);
    for (const block of blocks) await onMachine(block);
    expect(await system.must('findmnt', '--noheadings', '--output', 'FSTYPE', '/var/lib/postgresql')).toBe(
      'xfs\n',
    );
  });

  test('adds the host on the computer of the operator', { timeout: 600_000 }, async () => {
    const { PLATFORM_SECRET } = gatewaySecrets(devFolder(stack.devDir));
    writeFileSync(join(folder, 'branchgate.secrets'), `PLATFORM_SECRET=${PLATFORM_SECRET}\n`);
    const [block = ''] = blocksBelow('The enrolment').map((text) =>
      text.replace('https://gateway.example.com', stack.url),
    );
    const command = `branchgate() { ${process.execPath} ${join(ROOT, 'cli/main.ts')} "$@"; }\n${block}`;
    const shell = spawn('bash', ['-e', '-c', command], { env: { ...process.env, HOME: folder } });
    let printed = '';
    shell.stdout.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
    });
    expect((await once(shell, 'close'))[0]).toBe(0);
    line = printed.trim();
    expect(line).toMatch(/^branchgate-agent join --gateway \S+ --host db1 --token \S+$/);
  });

  test('joins with the printed line alone, and no problem is left', { timeout: 1_200_000 }, async () => {
    await system.forward(Number(new URL(stack.url).port));
    const joined = await system.run('sh', '-c', line);
    if (joined.code !== 0)
      console.log(await system.must('sh', '-c', 'journalctl -xn 40; tail -n 20 /var/log/postgresql/*; true'));
    expect(joined.stderr + joined.stdout).toMatch(/^start: .*\n(.*\n)*? {2}the agent is linked$/m);
    expect(joined.code).toBe(0);
    expect(joined.stdout).toContain('shares the blocks of branches');
    expect(joined.stdout).toContain('made a first backup');
    expect(joined.stdout).not.toContain('problem: ');
    const platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
    const { hosts } = (
      await platform.get<{ hosts: { id: string; name: string; linked: boolean }[] }>('/platform/v1/hosts')
    ).body;
    expect(hosts.find(({ name }) => name === 'db1')?.linked).toBe(true);
    const local = hosts.find(({ name }) => name === 'local');
    await platform.patch(`/platform/v1/hosts/${local?.id}`, { draining: true });
  });

  test('serves a branch', { timeout: 300_000 }, async () => {
    const api = new Api(stack.url, await stack.token());
    const project = await api.project('First');
    await api.allow(project.id);
    await api.branch(project.id, 'first');
    const { database_url: url } = await api.credentials(project.id, 'first');
    await eventually(async () => expect(await system.must('psql', '-Atc', 'select 1', url)).toBe('1\n'));
  });
});
