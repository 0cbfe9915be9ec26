import { chmodSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { runControlTool } from '../../../agent/control-tool/control-tool.ts';
import type { Context } from '../../../agent/join/context.ts';
import { Machine, type RunOptions } from '../../../agent/join/machine.ts';
import { awaitPostgres } from '../../../agent/join/services.ts';
import { COPY_STEP } from '../../../agent/join/standby-step.ts';
import { STEPS } from '../../../agent/join/steps.ts';
import { ROOT } from '../../../dev/build/repository.ts';
import { selfSigned } from '../../support/certificates.ts';
import { install, verifyUnits } from '../../support/debian.ts';
import { type JoinMachine, joinMachine } from '../../support/join-machine.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

let machine: JoinMachine;
beforeEach(async () => {
  machine = await joinMachine();
});
afterEach(() => machine.stop());

const NAMES = STEPS.map(({ name }) => name);
const changesOf = ({ done }: Awaited<ReturnType<JoinMachine['join']>>) =>
  done.flatMap(({ step, changes }) => changes.map((change) => `${step}: ${change}`));
const notesOf = ({ done }: Awaited<ReturnType<JoinMachine['join']>>) => done.flatMap(({ notes }) => notes);

const OWN_HBA = 'local all postgres peer\nlocal shop app scram-sha-256\n';

test('a machine joins, keeps what the operator wrote in copies, and a second run changes nothing', async () => {
  const first = await machine.join();
  expect(first.done.map(({ step }) => step)).toEqual(NAMES);
  expect(changesOf(first)).toContain(
    'postgresql: wrote /etc/postgresql/18/main/pg_hba.conf; the former one is /etc/postgresql/18/main/pg_hba.conf.before-join',
  );
  expect(notesOf(first).join('\n')).toMatch(/ext4 on \S+ has no reflinks.*mkfs\.xfs -m reflink=1,rmapbt=0/);
  expect(notesOf(first).join('\n')).toContain('port 443 is open to the networks of all rules');
  expect(machine.read('etc/branchgate/nftables.conf')).toContain('tcp dport 443 ');
  expect(machine.read('etc/postgresql/18/main/pg_hba.conf.before-join')).toBe(OWN_HBA);
  expect(machine.read('etc/postgresql/18/main/conf.d/branchgate.conf')).toContain('file_copy_method = clone');
  expect(machine.read('etc/branchgate/agent.env')).toBe(
    `# the operator\nBRANCH_CONNECTIONS=70\nGATEWAY_URL=${machine.url}\nPGDATA_DIR=/var/lib/postgresql/18/main\nPOSTGRES_PORT=5432\nPOSTGRES_SOCKET_DIR=/var/run/postgresql\nFIREWALL=nftables\nPOOLER_STANDBY_PORT=6433\n`,
  );
  expect(machine.read('etc/nftables.conf')).toBe('flush ruleset\ninclude "/etc/branchgate/nftables.conf"\n');
  expect(machine.read('proc/sys/vm/overcommit_memory')).toBe('2\n');
  expect(machine.calls().filter((call) => call.startsWith('restart'))).toEqual([
    'restart postgresql@18-main.service',
    'restart pgbouncer.service',
  ]);
  expect(machine.calls()).toContain('enable --now branchgate-agent.service');
  expect(machine.enrolments()).toBe(1);
  expect(changesOf(first)).toContain("tables: made the agent's tables");

  const before = machine.files();
  expect(changesOf(await machine.join())).toEqual([]);
  expect(machine.files()).toEqual(before);
  expect(machine.enrolments()).toBe(1);
});

test('a run that is killed at any change is completed by the next one, with the same result', async () => {
  await machine.join();
  const expected = machine.files();
  await machine.stop();
  machine = await joinMachine();
  let kills = 0;
  // A change of the certificate is five acts, so a run that makes fewer never comes further.
  for (; (await machine.join({ acts: IS_NIGHTLY ? 5 : 15 })).isKilled; kills++)
    expect(kills).toBeLessThan(200);
  expect(kills).toBeGreaterThan(IS_NIGHTLY ? 10 : 3);
  expect(notDated(machine.files(), machine.url)).toEqual(notDated(expected, machine.url));
  expect(machine.enrolments()).toBe(1);
});

/** The two machines have different gateways, certificates and temporary folders. */
const notDated = (files: Record<string, string>, url: string) =>
  Object.fromEntries(
    Object.entries(files)
      .filter(([name]) => !name.startsWith('etc/branchgate/tls/'))
      .map(([name, text]) => [name, text.replace(/http:\/\/127\.0\.0\.1:\d+/g, url)]),
  );

test.runIf(IS_NIGHTLY)('leave puts back what was there and leaves the data, also after a kill', async () => {
  const before = machine.files();
  await machine.enrol();
  await machine.join();
  let kills = 0;
  // Each run restarts both servers again, so one that makes fewer acts never comes further.
  for (; (await machine.leave({ acts: IS_NIGHTLY ? 4 : 9 })).isKilled; kills++)
    expect(kills).toBeLessThan(200);
  expect(kills).toBeGreaterThan(IS_NIGHTLY ? 10 : 1);
  expect(machine.files()).toEqual(before);
  expect(machine.exists('etc/branchgate/joined.json')).toBe(false);
  expect(globSync('etc/systemd/system/*.d', { cwd: machine.root })).toEqual([]);
  expect(machine.hasState('table')).toBe(false);
  expect(machine.hasState('branchgate-agent.service.active')).toBe(false);
  expect(machine.calls().slice(-2)).toContain('restart pgbouncer.service');
  expect(changesOf(await machine.leave()).filter((change) => !change.startsWith('restart:'))).toEqual([]);

  await machine.enrol();
  await machine.join();
  expect(machine.read('etc/postgresql/18/main/pg_hba.conf.before-join')).toBe(OWN_HBA);
});

test.runIf(IS_NIGHTLY)(
  'what the operator changes after a join is kept by the next join and by leave',
  async () => {
    await machine.join();
    const hba = 'etc/postgresql/18/main/pg_hba.conf';
    const edited = `${machine.read(hba)}local all report peer\n`;
    machine.write(hba, edited);
    expect(changesOf(await machine.join())).toEqual([
      expect.stringMatching(/^postgresql: wrote .*; the former one is .*pg_hba\.conf\.before-join\.2$/),
      'restart: restarted postgresql@18-main.service',
    ]);
    expect(machine.read(`${hba}.before-join.2`)).toBe(edited);
    machine.write(hba, edited);
    machine.write(
      'etc/branchgate/agent.env',
      `${machine.read('etc/branchgate/agent.env')}BRANCH_POOL_SIZE=9\n`,
    );
    await machine.leave();
    expect(machine.read(hba)).toBe(OWN_HBA);
    expect(machine.read(`${hba}.after-join`)).toBe(edited);
    expect(machine.read('etc/branchgate/agent.env')).toBe(
      '# the operator\nBRANCH_CONNECTIONS=70\nBRANCH_POOL_SIZE=9\n',
    );
  },
);

test.runIf(IS_NIGHTLY)('a dry run says what would change and changes nothing', async () => {
  const before = machine.files();
  const dry = await machine.join({ isDryRun: true });
  expect(machine.files()).toEqual(before);
  expect(machine.calls()).toEqual([]);
  expect(machine.enrolments()).toBe(0);
  await machine.enrol();
  const real = await machine.join();
  const files = (run: typeof dry) => changesOf(run).filter((change) => change.includes(': wrote'));
  expect(files(dry)).toEqual(files(real));
  const leaving = await machine.leave({ isDryRun: true });
  expect(changesOf(leaving)).toContain('files: put back /etc/postgresql/18/main/pg_hba.conf');
  expect(changesOf(await machine.join())).toEqual([]);
});

test('a dry run of a new host without certificate files names every step', async () => {
  const dry = await machine.join({ isDryRun: true, join: { tlsCert: undefined, tlsKey: undefined } });
  expect(dry.done.map(({ step }) => step)).toEqual(NAMES);
  expect(changesOf(dry)).toContain("certificate: got a certificate by ACME or of the gateway's authority");
});

test('a standby, which is read-only, gets no tables', async () => {
  machine.setState('standby', '');
  const { done } = await machine.join({ only: ['settings', 'role', 'postgresql', 'restart', 'tables'] });
  expect(done.at(-1)).toEqual({
    step: 'tables',
    changes: [],
    notes: ['this host is a standby, which has the tables of its primary'],
  });
  expect(machine.hasState('tables')).toBe(false);
});

test.runIf(IS_NIGHTLY)('the units that it installs pass systemd-analyze verify', async () => {
  if (!install('systemd-analyze', 'systemd')) return;
  for (const name of ['usr/sbin/pgbouncer', 'usr/bin/env', 'bin/kill']) {
    machine.write(name, '');
    chmodSync(join(machine.root, name), 0o755);
  }
  machine.write(
    'usr/lib/systemd/system/branchgate-agent.service',
    readFileSync(join(ROOT, 'agent/systemd/branchgate-agent.service'), 'utf8'),
  );
  await machine.enrol();
  await machine.join();
  const units = ['pgbouncer-standby.service', 'pgbouncer-standby.path', 'branchgate-agent.service'];
  expect(verifyUnits(machine.root, units)).toBe('');
});

test.runIf(IS_NIGHTLY)('one step alone renews the certificate', async () => {
  await machine.join();
  const renewed = selfSigned(machine.root, { name: 'renewed' });
  const run = await machine.join({
    only: ['certificate'],
    join: { tlsCert: renewed.certFile, tlsKey: renewed.keyFile },
  });
  expect(changesOf(run)).toEqual([
    'certificate: wrote /etc/branchgate/tls/server.key',
    'certificate: wrote /etc/branchgate/tls/server.crt',
    'certificate: reloaded postgresql@18-main.service',
    'certificate: reloaded pgbouncer.service',
  ]);
  expect(run.done.map(({ step }) => step)).toEqual(['certificate']);
});

test.runIf(IS_NIGHTLY)(
  'without nftables, and with an old PgBouncer, there is no filter and no standby, which is said',
  async () => {
    await machine.enrol();
    machine.setState('no-nft', '');
    machine.setState('pgbouncer', 'PgBouncer 1.18.0\n');
    const run = await machine.join();
    expect(machine.read('etc/branchgate/agent.env')).not.toMatch(/FIREWALL|STANDBY/);
    expect(machine.exists('etc/systemd/system/pgbouncer-standby.path')).toBe(false);
    expect(machine.read('etc/pgbouncer/pgbouncer.ini')).not.toContain('peers');
    expect(notesOf(run).join('\n')).toMatch(
      /apt install nftables.*PgBouncer 1\.18\.0 cannot have a standby/s,
    );
  },
);

/** Nothing listens there, and browsers and Node may connect to it. */
const CLOSED_PORT = 9999;
const CLUSTER = { cluster: 'main', port: 5432, pgdata: '/x', configdir: '/x', owneruid: 0, running: 1 };
const clusters = (...found: object[]) => JSON.stringify(found.map((one) => ({ ...CLUSTER, ...one })));

/** Makes the mistake. @returns the options that differ */
type Mistake = (machine: JoinMachine) => object | undefined | Promise<object>;

/** What an operator gets wrong: the cause and the remedy, before anything has changed. */
test.each<[string, Mistake, string, RegExp]>([
  [
    'PostgreSQL 17',
    (on) => void on.setState('clusters', clusters({ version: 17 })),
    'refused',
    /PostgreSQL 17 is too old.*install PostgreSQL 18.*apt/,
  ],
  ['no cluster', (on) => void on.setState('clusters', '[]'), 'refused', /pg_createcluster 18 main/],
  [
    'two clusters',
    (on) => void on.setState('clusters', clusters({ version: 18 }, { version: 18, cluster: 'other' })),
    'usage',
    /--cluster 18\/main or 18\/other/,
  ],
  [
    'an old PgBouncer',
    (on) => void on.setState('pgbouncer', 'PgBouncer 1.16.1\n'),
    'refused',
    /PgBouncer 1\.16\.1 is too old: install 1\.18/,
  ],
  [
    'a closed port',
    () => ({ gateway: `http://127.0.0.1:${CLOSED_PORT}` }),
    'unreachable',
    /refuses the connection: check the address and its port/,
  ],
  [
    'no DNS',
    () => ({ gateway: 'https://gateway.invalid' }),
    'unreachable',
    /gateway\.invalid has no DNS record|name server/,
  ],
  ['plain HTTP', () => ({ gateway: 'http://gateway.example.com' }), 'usage', /not an https: URL/],
  ['a wrong clock', (on) => void on.setClock(3_600_000), 'refused', /60 minutes fast.*timedatectl/],
  [
    'no certificate of the authority on record',
    async (on) => {
      await on.enrol();
      on.setChallenges(false);
      on.refuseCertificates();
      return { tlsCert: undefined, tlsKey: undefined };
    },
    'refused',
    /issues no certificate: The operator gave this host another authority.*--ca none/,
  ],
  ['no token', () => ({ token: undefined }), 'usage', /token is missing/],
  [
    'the key of another certificate',
    async (on) => {
      await on.enrol();
      return { tlsKey: selfSigned(on.root, { name: 'other' }).keyFile };
    },
    'refused',
    /key does not belong to the certificate/,
  ],
])('%s is refused with the cause and the remedy', async (_, prepare, kind, message) => {
  const run = machine.join({ join: (await prepare(machine)) ?? {} });
  await expect(run).rejects.toThrow(message);
  await expect(run).rejects.toMatchObject({ kind });
  expect(machine.exists('etc/postgresql/18/main/pg_hba.conf.before-join')).toBe(false);
});

test.runIf(IS_NIGHTLY)(
  'an expired token is refused before the servers are changed, and the next token completes the join',
  async () => {
    machine.acceptToken(false);
    const refused = await machine.command('join', '--gateway', machine.url, '--token', 't'.repeat(43));
    expect(refused.stdout).not.toContain('enrolled this host');
    expect(refused).toMatchObject({ exitCode: 3 });
    await expect(machine.join()).rejects.toMatchObject({
      kind: 'refused',
      message: expect.stringMatching(/^the enrolment token is invalid.*or expired: get a new one/),
    });
    expect(machine.exists('etc/postgresql/18/main/pg_hba.conf.before-join')).toBe(false);
    machine.acceptToken(true);
    await machine.join();
    expect(machine.enrolments()).toBe(1);
  },
);

/** Runs a command of the control tool for the machine, in this process. */
async function tool(...words: string[]) {
  const stdout = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  const stderr = vi.spyOn(process.stderr, 'write').mockReturnValue(true);
  try {
    const exitCode = await runControlTool([...words, '--root', machine.root], null);
    return { exitCode, stdout: stdout.mock.calls.join(''), stderr: stderr.mock.calls.join('') };
  } finally {
    stdout.mockRestore();
    stderr.mockRestore();
  }
}

test('the command prints each step, as text and as JSON, and refuses an unknown one', async () => {
  const text = await machine.command('join', '--only', 'volume', '--only', 'kernel');
  expect(text).toMatchObject({ exitCode: 0, stderr: '' });
  expect(text.stdout).toMatch(
    /^volume: nothing to change\n {2}.*reflinks.*\nkernel: changed\n {2}wrote \/etc\/sysctl/,
  );
  const json = await tool('join', '--only', 'kernel', '--json', '--dry-run');
  expect(JSON.parse(json.stdout)).toEqual({
    dry_run: true,
    steps: [{ step: 'kernel', changes: [], notes: [] }],
  });
  expect(await tool('join', '--only', 'kernels')).toMatchObject({
    exitCode: 2,
    stderr: expect.stringContaining('It is one of gateway, servers'),
  });
  expect(await tool('join', '--gateway', `http://127.0.0.1:${CLOSED_PORT}`)).toMatchObject({
    exitCode: 4,
  });
  expect(await tool('leave')).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining('files: changed\n  removed /etc/sysctl.d/60-branchgate.conf'),
  });
});

test('the copy of a primary has no time limit, and a command that hangs has one', async () => {
  const limits = new Map<string, number | undefined>();
  const scripted = Object.assign(new Machine(), {
    query: async (_command: string, words: readonly string[], { within }: RunOptions = {}) => {
      limits.set(words.slice(-1).join(), within);
      return { code: 0, stdout: '{"role":"standby","needed":true}', stderr: '' };
    },
  });
  const context = { machine: scripted, program: ['node', 'agent'], environment: {} };
  const servers = { user: 'postgres', postgres: { unit: 'postgresql@18-main' } };
  await COPY_STEP.apply({ ...context, servers } as unknown as Context);
  expect(limits.get('copy-primary')).toBe(0);
  const hung = await new Machine().query('sleep', ['60'], { within: 50 });
  expect(hung.code).not.toBe(0);
});

test('a standby that replays the WAL of its copy is awaited, and a server that does not start is not', async () => {
  let replays = 3;
  const replaying = Object.assign(new Machine(), {
    query: async (command: string) => {
      if (command === 'pg_isready') replays -= 1;
      const codes: Record<string, number> = {
        pg_isready: replays < 0 ? 2 : 1,
        psql: replays === 0 ? 0 : 2,
      };
      return { code: codes[command] ?? 127, stdout: '1\n', stderr: '' };
    },
  });
  const servers = { user: 'postgres', postgres: { socketDir: '/run/postgresql', port: 5432 } };
  const context = { machine: replaying, servers } as unknown as Context;
  await awaitPostgres(context, 'branchgate', 1);
  expect(replays).toBe(0);
  replays = -1;
  await expect(awaitPostgres(context, 'branchgate', 1)).rejects.toThrow(
    /does not accept the role branchgate/,
  );
});
