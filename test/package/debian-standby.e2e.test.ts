import { execFile } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../support/api.ts';
import { selfSigned } from '../support/certificates.ts';
import { query } from '../support/database.ts';
import { agentPackage } from '../support/debian.ts';
import { bootDebian, canBoot, type DebianSystem } from '../support/debian-system.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack, UNLIMITED } from '../support/stack/stack.ts';

const SET_UP_WITHIN_MS = 1_800_000;
const MEMBER = '/var/lib/branchgate/member.json';
const POSTGRES = 'postgresql@18-main';
const UNITS = ['branchgate-agent', 'pgbouncer', POSTGRES];

/** The local stack's host and a Debian system are a primary and its standby, with the real systemd, in both orders. */
describe.runIf(IS_NIGHTLY && canBoot())('a standby with systemd', () => {
  let system: DebianSystem;
  let stack: Stack;
  let platform: Api;
  let api: Api;
  let project: ProjectBody;
  let ports: { direct: number; pooled: number };

  interface HostBody {
    id: string;
    name: string;
    linked: boolean;
    members: { host_id: string; role: string; lag_bytes: number | null }[];
  }

  const hostOf = async (name: string) => {
    const { body } = await platform.get<{ hosts: HostBody[] }>('/platform/v1/hosts');
    return body.hosts.find((host) => host.name === name) as HostBody;
  };
  const roleOf = async (name: string) => {
    const { id, members } = await hostOf(name);
    return members.find(({ host_id }) => host_id === id);
  };
  const member = () => JSON.parse(readFileSync(system.at(MEMBER), 'utf8'));
  const stateOf = async (unit: string) =>
    (await system.run('systemctl', 'show', '--property=ActiveState', '--value', unit)).stdout.trim();
  /** Runs a command of the command line as the operator. @returns what it printed */
  async function branchgate(words: string[]): Promise<string> {
    const { PLATFORM_SECRET } = gatewaySecrets(devFolder(stack.devDir));
    const env = { ...process.env, BRANCHGATE_URL: stack.url, BRANCHGATE_PLATFORM_SECRET: PLATFORM_SECRET };
    return (await promisify(execFile)(process.execPath, [join(ROOT, 'cli/main.ts'), ...words], { env }))
      .stdout;
  }
  const urlOf = async () => (await api.credentials(project.id, 'main')).direct_url as string;
  const promote = async (name: string) =>
    platform.post(`/platform/v1/hosts/${(await hostOf(name)).id}/promote`, {});

  beforeAll(async () => {
    stack = await startStack({ restarts: false, env: UNLIMITED });
    platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
    api = new Api(stack.url, await stack.token());
    project = await api.project('shop');
    await api.allow(project.id);
    await query(await urlOf(), 'create table written (id int primary key)');
    system = await bootDebian();
    const agentFile = await agentPackage();
    const given = system.give(agentFile, basename(agentFile));
    await system.install(given);
    await system.forward(Number(new URL(stack.url).port));
    await system.forward(stack.state.direct_port);
    ports = { direct: await freePort(), pooled: await freePort() };
    await system.expose(ports.direct, 5432);
    await system.expose(ports.pooled, 6432);
  }, SET_UP_WITHIN_MS);
  afterAll(async () => {
    await system?.stop();
    await stack?.stop();
  });

  test('joins, follows its primary and admits no client', async () => {
    const { certFile } = selfSigned(system.at('/srv/test'));
    const printed = await branchgate([
      ...['host', 'add', 'debian', '--address', '127.0.0.1', '--standby-of', 'local', '--ca', certFile],
      ...['--direct-port', String(ports.direct), '--pooled-port', String(ports.pooled)],
    ]);
    const joined = await system.run(
      ...printed.trim().split(' '),
      ...['--tls-cert', '/srv/test/server.crt', '--tls-key', '/srv/test/server.key'],
    );
    expect(joined.code, joined.stdout + joined.stderr).toBe(0);
    await eventually(async () =>
      expect(await roleOf('debian')).toMatchObject({ role: 'standby', lag_bytes: 0 }),
    );
    for (const unit of UNITS) expect([unit, await stateOf(unit)]).toEqual([unit, 'active']);
    const there = new URL(await urlOf());
    there.port = '5432';
    // By the firewall, which admits nobody.
    expect(await system.must('ss', '-ltn')).toContain('0.0.0.0:5432');
    expect((await system.run('psql', '--command', 'select 1', there.href)).stderr).toContain('refused');
  });

  test('is promoted, and serves', async () => {
    const promoted = await promote('debian');
    expect(promoted.status, JSON.stringify(promoted.body)).toBe(200);
    await query(await urlOf(), 'insert into written values (1)');
    expect(new URL(await urlOf()).port).toBe(String(ports.direct));
    await api.branch(project.id, 'pr-1');
  });

  test('its servers wait for the gateway when they start', async () => {
    const forward = `forward-${new URL(stack.url).port}`;
    await system.must('systemctl', 'stop', ...UNITS);
    // Only a primary with a standby asks.
    writeFileSync(system.at(MEMBER), JSON.stringify({ ...member(), standby_id: crypto.randomUUID() }));
    await system.must('systemctl', 'kill', '--signal=STOP', forward);
    await system.must('systemctl', 'start', '--no-block', ...UNITS.toReversed());
    for (const unit of [POSTGRES, 'pgbouncer']) {
      const printed = () => system.must('journalctl', '--unit', unit);
      await eventually(async () => expect(await printed()).toContain('the gateway does not answer'));
      expect([unit, await stateOf(unit)]).toEqual([unit, 'activating']);
    }
    await system.must('systemctl', 'kill', '--signal=CONT', forward);
    for (const unit of UNITS)
      await eventually(async () => expect([unit, await stateOf(unit)]).toEqual([unit, 'active']));
    await eventually(async () => expect(await roleOf('debian')).toMatchObject({ role: 'primary' }));
    await eventually(async () => expect((await hostOf('debian')).linked).toBe(true));
    expect(await query(await urlOf(), 'select id from written')).toEqual([{ id: 1 }]);
  });

  test('is fenced, and its agent stays linked', async () => {
    await stack.agentTool('copy-primary');
    for (const part of ['postgres', 'pgbouncer', 'agent'] as const) await stack.start(part);
    await eventually(async () =>
      expect(await roleOf('local')).toMatchObject({ role: 'standby', lag_bytes: 0 }),
    );
    const promoted = await promote('local');
    expect(promoted.status, JSON.stringify(promoted.body)).toBe(200);
    await eventually(async () => expect(member().role).toBe('fenced'));
    // Their units start both again, behind the gate.
    for (const unit of ['pgbouncer', POSTGRES])
      await eventually(async () => expect([unit, await stateOf(unit)]).toEqual([unit, 'activating']));
    await query(await urlOf(), 'insert into written values (2)');
    const agent = async () => {
      expect((await hostOf('debian')).linked).toBe(true);
      return (
        await system.must('systemctl', 'show', '--property=MainPID', '--value', 'branchgate-agent')
      ).trim();
    };
    const pid = await eventually(agent);
    await new Promise((resolve) => setTimeout(resolve, 12_000));
    expect(await agent()).toBe(pid);
  });

  test('stays closed when the machine starts again, and its agent links all the same', async () => {
    await system.must('systemctl', 'stop', ...UNITS);
    // The machine was off when it was fenced.
    const old = {
      ...member(),
      role: 'primary',
      generation: 1,
      closing: false,
      standby_id: crypto.randomUUID(),
    };
    writeFileSync(system.at(MEMBER), JSON.stringify(old));
    await system.must('systemctl', 'start', '--no-block', POSTGRES);
    await eventually(async () => expect(member().role).toBe('fenced'));
    // By a gate of root, for an agent that is not.
    expect((await system.must('stat', '--format=%U', MEMBER)).trim()).toBe('postgres');
    await system.must('systemctl', 'start', '--no-block', 'postgresql', 'pgbouncer', 'branchgate-agent');
    await eventually(async () => expect((await hostOf('debian')).linked).toBe(true));
    expect(await stateOf(POSTGRES)).toBe('activating');
    expect((await system.must('ss', '-ltn')).match(/:(5432|6432)\s/)).toBeNull();
  });

  test('becomes the standby of the other one by rejoin', async () => {
    const joined = await system.run('branchgate-agent', 'rejoin');
    expect(joined.code, joined.stdout + joined.stderr).toBe(0);
    await eventually(async () =>
      expect(await roleOf('debian')).toMatchObject({ role: 'standby', lag_bytes: 0 }),
    );
    for (const unit of UNITS) expect([unit, await stateOf(unit)]).toEqual([unit, 'active']);
  });
});
