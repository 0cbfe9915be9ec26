import { once } from 'node:events';
import { rmSync } from 'node:fs';
import type { Server } from 'node:http';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ClientNamespace, makeClientNamespace } from '../support/client-namespace.ts';
import { CommandLine } from '../support/command-line.ts';
import { freePort } from '../support/free-port.ts';
import { gatewayFront } from '../support/gateway-front.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/**
 * A computer in a private network: the gateway sees the address of its NAT, and the database host another one. Each line of
 * README's first hour is typed there.
 */
describe.runIf(IS_NIGHTLY && process.getuid?.() === 0)('the first hour in a private network', () => {
  let network: ClientNamespace;
  let stack: Stack;
  let cli: CommandLine;
  let front: Server;

  beforeAll(async () => {
    network = makeClientNamespace();
    stack = await startStack({ env: { LISTEN_ADDRESSES: `127.0.0.1,${network.host}` } });
    const { host, port } = new URL(stack.url);
    front = gatewayFront(host, '203.0.113.80');
    const frontPort = await freePort();
    await once(front.listen(frontPort, network.host), 'listening');
    const { direct_port, pooled_port } = stack.state;
    await network.relay({
      [Number(port)]: frontPort,
      [direct_port]: direct_port,
      [pooled_port]: pooled_port,
    });
    cli = await CommandLine.open({ BRANCHGATE_URL: stack.url, BRANCHGATE_TOKEN: await stack.token() });
  });
  afterAll(async () => {
    front?.close();
    await stack?.stop();
    network?.remove();
    if (cli) rmSync(cli.folder, { recursive: true, force: true });
  });

  /** Types a line on the computer. */
  const type = (...words: string[]) =>
    network.run([...cli.words, ...words], { cwd: cli.folder, env: cli.environment });
  const must = async (...words: string[]) => {
    const ended = await type(...words);
    expect(ended.code, `${words.join(' ')}: ${ended.stderr}`).toBe(0);
    return ended.stdout;
  };
  const ask = (branch: string[], sql: string) => type('psql', ...branch, '--', '-At', '-c', sql);

  test('ends with rows of a branch, after the host has named the address that it sees', async () => {
    await must('project', 'create', 'shop', '--if-exists', 'return');
    const refused = await ask([], 'select 1');
    expect(refused.code).not.toBe(0);
    expect(refused.stderr).toContain(
      `The database host sees this machine as ${network.address}, and no network rule lets that connect to main.`,
    );
    expect(refused.stderr).toContain('`branchgate rule add observed --branch main`');
    expect((await type('doctor')).stdout).toContain(network.address);

    await must('rule', 'add', 'observed', '--branch', 'main');
    const made = await ask(
      [],
      `create table item as select n, 'item ' || n as name from generate_series(1, 100) n`,
    );
    expect(made.code, made.stderr).toBe(0);

    // The rule of the creator is for the address of the NAT.
    await must('branch', 'create', 'pr-1', '--ttl', '7d', '--allow', 'me');
    expect((await ask(['pr-1'], 'select count(*) from item')).stderr).toContain(network.address);
    await must('rule', 'add', 'observed', '--branch', 'pr-1');
    expect((await ask(['pr-1'], 'delete from item where n > 10')).code).toBe(0);
    expect((await ask(['pr-1'], 'select count(*) from item')).stdout.trim()).toBe('10');
    expect((await ask([], 'select count(*) from item')).stdout.trim()).toBe('100');

    const rules = JSON.parse(await must('rule', 'list', '--json')) as { cidr: string }[];
    const cidrs = new Set(rules.map(({ cidr }) => cidr));
    expect(cidrs).toContain(`${network.address}/32`);
    expect(cidrs).not.toContain('0.0.0.0/0');
  });
});
