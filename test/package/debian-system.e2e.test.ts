import { execFile } from 'node:child_process';
import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { STEPS } from '../../agent/join/steps.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api, type Credentials, type ProjectBody } from '../support/api.ts';
import { selfSigned } from '../support/certificates.ts';
import { connect, query } from '../support/database.ts';
import { agentPackage } from '../support/debian.ts';
import { bootDebian, bootInQemu, canBoot, canEmulate, type DebianSystem } from '../support/debian-system.ts';
import { eventually } from '../support/eventually.ts';
import { freePort } from '../support/free-port.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

const AGENT = '/opt/branchgate/branchgate-agent.mjs';
/** debootstrap unpacks and configures 150 packages, which takes three minutes of processor time. */
const SET_UP_WITHIN_MS = 1_800_000;
/** Without the help of the processor, qemu takes minutes. */
const BOOT_WITHIN_S = 900;
const BOOT_TEST_WITHIN_MS = 3 * BOOT_WITHIN_S * 1000;
const CONSOLE_BYTES = 4_000;
const NAMES = STEPS.map(({ name }) => name);
/** Between two queries of a client. Two that log in for each stay below the highest limit of connection attempts. */
const PAUSE_MS = 100;
const HBA = '/etc/postgresql/18/main/pg_hba.conf';

/** The first command of docs/deploying.md that begins so, as a reader copies it; the overview has comments behind its own. */
function commandOfPage(beginning: string): string {
  const page = readFileSync(join(ROOT, 'docs/deploying.md'), 'utf8');
  const line = page.split('\n').find((text) => text.startsWith(beginning) && !text.includes(' # '));
  if (!line) throw new Error(`docs/deploying.md has no command ${beginning}`);
  return line;
}

const problemsIn = (printed: string) => printed.match(/^ *problem: .*/gm) ?? [];

/** From an empty Debian system to a branch and back, with the real systemd, PostgreSQL, PgBouncer and nftables. */
describe.runIf(IS_NIGHTLY && canBoot())('a Debian system', () => {
  let system: DebianSystem;
  let stack: Stack;
  let platform: Api;
  let api: Api;
  let hostId: string;
  let line: string[];
  let project: ProjectBody;
  let agentFile: string;
  /** Of this machine, which lead to the ports of the system. */
  let exposed: Record<string, number>;

  beforeAll(async () => {
    stack = await startStack({ env: { LIMIT_PUBLIC_PER_MINUTE: '100000' }, restarts: false });
    platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
    api = new Api(stack.url, await stack.token());
    system = await bootDebian();
    const installation = commandOfPage('apt install ./').replace(/ \S+$/, '');
    agentFile = system.give(await agentPackage(), basename(installation));
    await system.must(
      'sh',
      '-c',
      `cd ${dirname(agentFile)} && ${installation} --yes --no-install-recommends`,
    );
    await system.forward(Number(new URL(stack.url).port));
    const addition = commandOfPage('branchgate host add ');
    appendFileSync(system.at('/etc/hosts'), `127.0.0.1 ${addition.split(' ').at(-1)}\n`);
    const printed = await branchgate(addition.split(' ').slice(1));
    const { hosts } = (await platform.get<{ hosts: { id: string; name: string }[] }>('/platform/v1/hosts'))
      .body;
    hostId = hosts.find(({ name }) => name === 'db1')?.id ?? '';
    const local = hosts.find(({ name }) => name === 'local');
    await platform.patch(`/platform/v1/hosts/${local?.id}`, { draining: true });
    selfSigned(system.at('/srv/test'));
    line = [
      ...printed.trim().split(' '),
      ...['--tls-cert', '/srv/test/server.crt', '--tls-key', '/srv/test/server.key'],
    ];
  }, SET_UP_WITHIN_MS);
  afterAll(async () => {
    await system?.stop();
    await stack?.stop();
  });

  /** Runs a command of the command line as the operator. @returns what it printed */
  async function branchgate(words: string[]): Promise<string> {
    const { PLATFORM_SECRET } = gatewaySecrets(devFolder(stack.devDir));
    const env = { ...process.env, BRANCHGATE_URL: stack.url, BRANCHGATE_PLATFORM_SECRET: PLATFORM_SECRET };
    return (await promisify(execFile)(process.execPath, [join(ROOT, 'cli/main.ts'), ...words], { env }))
      .stdout;
  }

  const psql = (url: string, statement: string) =>
    system.run('psql', '--no-psqlrc', '--tuples-only', '--no-align', '--command', statement, url);
  /** URL of a port of the system for a client on this machine. */
  const fromHere = (url: string) => {
    const local = new URL(url);
    local.host = `127.0.0.1:${exposed[local.port]}`;
    return local.href;
  };

  /** Keeps a session on each port, and runs a query in it again and again. @returns ends them, with what failed */
  async function holdSessions({ direct_url, database_url }: Credentials): Promise<() => Promise<string[]>> {
    const failures: string[] = [];
    let isOver = false;
    const sessions = await Promise.all([direct_url, database_url].map((url) => connect(fromHere(url))));
    const working = sessions.map(async (session) => {
      for (; !isOver; await sleep(PAUSE_MS))
        await session.query('select 1').catch((error) => failures.push(String(error)));
      await session.end();
    });
    return async () => {
      isOver = true;
      await Promise.all(working);
      return failures;
    };
  }

  const isLinked = async () => {
    const { hosts } = (await platform.get<{ hosts: { id: string; linked: boolean }[] }>('/platform/v1/hosts'))
      .body;
    return hosts.find(({ id }) => id === hostId)?.linked;
  };

  test('without PostgreSQL, the error names the cause and the remedy', {
    timeout: SET_UP_WITHIN_MS,
  }, async () => {
    const { code, stderr } = await system.run(...line);
    expect(code).toBe(3);
    expect(stderr).toMatch(/PostgreSQL has no cluster|PostgreSQL is not installed/);
    await system.install('postgresql-18', 'pgbouncer', 'nftables', 'xfsprogs');
  });

  test('joins although it is killed after each step, and a second run changes nothing', {
    timeout: SET_UP_WITHIN_MS,
  }, async () => {
    const before = readFileSync(system.at(HBA), 'utf8');
    const killedIn = new Set<string | undefined>();
    for (const step of NAMES.slice(0, -1)) {
      const { stdout } = await system.runUntil(`${step}: `, ...line);
      const reached = stdout.match(/^[a-z]+(?=: )/gm)?.at(-1) ?? '';
      killedIn.add(NAMES[NAMES.indexOf(reached) + 1]);
    }
    // A step of a few milliseconds can end before the kill. The kill at each change is in join.test.ts.
    expect([...killedIn]).toEqual(
      expect.arrayContaining(['enrolment', 'certificate', 'role', 'firewall', 'restart', 'doctor', 'start']),
    );
    expect(killedIn).not.toContain(undefined);
    const joined = await system.run(...line);
    expect(joined.stderr).toBe('');
    expect(joined.code, joined.stdout).toBe(0);
    expect(joined.stdout).toMatch(/^start: .*\n(.*\n)*? {2}the agent is linked$/m);
    await eventually(async () => expect(await isLinked()).toBe(true));
    expect(readFileSync(system.at(`${HBA}.before-join`), 'utf8')).toBe(before);
    expect(problemsIn(joined.stdout)).toEqual([]);
    // As root, who types it.
    const doctor = await system.run('branchgate-agent', 'doctor');
    expect(doctor.stdout).not.toContain('problem: ');
    expect(doctor.code).toBe(0);

    const again = await system.run('branchgate-agent', 'join', '--json');
    const { steps } = JSON.parse(again.stdout) as { steps: { step: string; changes: string[] }[] };
    // The settings of the kernel are read-only here.
    expect(steps.flatMap(({ step, changes }) => (step === 'kernel' ? [] : changes))).toEqual([]);
  });

  test('serves a first branch to clients on both ports', async () => {
    project = await api.project('First');
    await api.allow(project.id);
    const main = await api.credentials(project.id, 'main');
    const made = await psql(
      main.direct_url,
      "create table book (title text); insert into book values ('Seven')",
    );
    expect(made).toMatchObject({ code: 0 });
    // A client below logs in for each of its queries.
    await api.patch(`/api/v1/projects/${project.id}`, { connection_attempts_per_minute: 'max' });
    exposed = { 5432: await freePort(), 6432: await freePort() };
    for (const [there, port] of Object.entries(exposed)) await system.expose(port, Number(there));
    await api.branch(project.id, 'first');
    const first = await api.credentials(project.id, 'first');
    for (const url of [first.direct_url, first.database_url])
      expect(await psql(url, 'select title from book')).toMatchObject({ stdout: 'Seven\n' });
  });

  test('an upgrade of the package upgrades the agent, and no client notices', async () => {
    const main = await api.credentials(project.id, 'main');
    const { database_url } = main;
    const endSessions = await holdSessions(main);
    let isDone = false;
    const failures: string[] = [];
    let queries = 0;
    const clients = [1, 2].map(async () => {
      while (!isDone) {
        const { code, stderr } = await psql(database_url, "insert into book values ('more')");
        queries += 1;
        if (code !== 0) failures.push(stderr);
        await sleep(PAUSE_MS);
      }
    });
    const before = (await system.must('systemctl', 'show', '--property=MainPID', 'branchgate-agent')).trim();
    await system.must('sh', '-c', `sed -i 's/^#!.*//; $ a // another release' ${AGENT}`);
    await system.must('dpkg', '--install', agentFile);
    expect(
      (await system.must('systemctl', 'show', '--property=MainPID', 'branchgate-agent')).trim(),
    ).not.toBe(before);
    await eventually(async () => expect(await isLinked()).toBe(true));
    isDone = true;
    await Promise.all(clients);
    expect([...failures, ...(await endSessions())]).toEqual([]);
    expect(queries).toBeGreaterThan(5);
    expect(await system.must('cmp', AGENT, '/usr/lib/branchgate-agent/branchgate-agent.mjs')).toBe('');
  });

  test('an upgrade while the gateway is away leaves a configured package, and is repeated later', async () => {
    const { database_url } = await api.credentials(project.id, 'main');
    await system.must('sh', '-c', `sed -i 's/^#!.*//; $ a // another release' ${AGENT}`);
    await stack.kill('gateway');
    const installed = await system.run('dpkg', '--install', agentFile);
    expect(installed.code, installed.stderr).toBe(0);
    expect(installed.stderr).toContain('the agent of the release before it runs. When the gateway answers:');
    expect(await system.must('dpkg-query', '--list', 'branchgate-agent')).toMatch(/^ii\s+branchgate-agent/m);
    expect((await system.run('dpkg', '--audit')).stdout).toBe('');
    expect(await psql(database_url, 'select 1')).toMatchObject({ stdout: '1\n' });
    await stack.start('gateway');
    await eventually(async () => expect(await isLinked()).toBe(true));
    const [, repeat = ''] = /^ {2}(branchgate-agent upgrade .*)$/m.exec(installed.stderr) ?? [];
    await system.must('sh', '-c', repeat);
    await eventually(async () => expect(await isLinked()).toBe(true));
    expect(await system.must('cmp', AGENT, '/usr/lib/branchgate-agent/branchgate-agent.mjs')).toBe('');
  });

  test.runIf(canEmulate())(
    'after a real boot the agent links, and both ports serve',
    async () => {
      const services = ['branchgate-agent', 'pgbouncer', 'postgresql@18-main'];
      await api.allow(project.id, '10.0.2.0/24');
      const { direct_url: direct, database_url: pooled } = await api.credentials(project.id, 'first');
      await system.must('systemctl', 'stop', ...services);
      await eventually(async () => expect(await isLinked()).toBe(false));
      const ports = { [await freePort()]: 5432, [await freePort()]: 6432 };
      const gatewayPort = Number(new URL(stack.url).port);
      const machine = await bootInQemu(system.root, { gatewayPort, ports });
      try {
        const within = async (check: () => Promise<void>) => {
          // A machine that is over is not waited for.
          await eventually(async () => machine.hasEnded() || (await check()), BOOT_WITHIN_S).catch(
            (error) => {
              throw new Error(`${error}\n${machine.printed().slice(-CONSOLE_BYTES)}`);
            },
          );
          expect(machine.hasEnded(), machine.printed().slice(-CONSOLE_BYTES)).toBe(false);
        };
        await within(async () => expect(await isLinked()).toBe(true));
        for (const url of [direct, pooled]) {
          const local = new URL(url);
          const port = Object.entries(ports).find(([, there]) => there === Number(local.port))?.[0] ?? '';
          local.host = `127.0.0.1:${port}`;
          await within(async () =>
            expect(await query(local.href, 'select title from book limit 1')).toEqual([{ title: 'Seven' }]),
          );
        }
      } finally {
        await machine.stop();
      }
      await system.must('systemctl', 'start', ...[...services].reverse());
      await eventually(async () => expect(await isLinked()).toBe(true));
    },
    BOOT_TEST_WITHIN_MS,
  );

  test('a renewed certificate is served by both servers, and no session ends', async () => {
    const main = await api.credentials(project.id, 'main');
    const served = async (name: string) => {
      const ca = readFileSync(system.at(`/srv/test/${name}.crt`), 'utf8');
      for (const url of [main.direct_url, main.database_url])
        await (await connect(fromHere(url), { ssl: { ca } })).end();
    };
    await served('server');
    const endSessions = await holdSessions(main);
    selfSigned(system.at('/srv/test'), { name: 'renewed' });
    const words = ['--tls-cert', '/srv/test/renewed.crt', '--tls-key', '/srv/test/renewed.key'];
    await system.must('branchgate-agent', 'join', '--only', 'certificate', ...words);
    expect(readFileSync(system.at('/etc/branchgate/tls/server.crt'), 'utf8')).toBe(
      readFileSync(system.at('/srv/test/renewed.crt'), 'utf8'),
    );
    await eventually(() => served('renewed'));
    await expect(served('server')).rejects.toThrow('self-signed certificate');
    expect(await endSessions()).toEqual([]);
  });

  test('leave and a purge put everything back, and leave the databases', async () => {
    const databases = () =>
      system.must(
        'runuser',
        '-u',
        'postgres',
        '--',
        'psql',
        '-tAc',
        'SELECT datname FROM pg_database ORDER BY 1',
      );
    const names = (await system.must('ls', '/var/lib/postgresql/18/main/base')).trim();
    const taken = await system.run('branchgate-agent', 'leave');
    expect(taken.code, taken.stderr + taken.stdout).toBe(0);
    expect(taken.stdout).toMatch(/role branchgate and \d+ databases stay/);
    await eventually(async () => expect(await databases()).toMatch(/db_first_/));
    expect((await system.must('ls', '/var/lib/postgresql/18/main/base')).trim()).toBe(names);
    expect(readFileSync(system.at(HBA), 'utf8')).not.toContain('branchgate');
    expect((await system.run('nft', 'list', 'table', 'inet', 'branchgate_5432')).code).not.toBe(0);

    await system.must('dpkg', '--purge', 'branchgate-agent');
    for (const path of [
      '/etc/branchgate',
      '/opt/branchgate',
      '/var/lib/branchgate',
      '/usr/lib/branchgate-agent',
    ])
      expect([path, existsSync(system.at(path))]).toEqual([path, false]);
    const left =
      "find / -xdev -path /srv -prune -o -iname '*branchgate*' -print -o -name '*.before-join*' -print";
    expect(await system.must('sh', '-c', left)).toBe('');
    expect(await databases()).toMatch(/db_first_/);
  });
});
