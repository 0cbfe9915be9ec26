import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdtemp, readdir, readFile, rm, utimes, writeFile } from 'node:fs/promises';
import { createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer } from 'node:tls';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { examine, readCertificateEnd } from '../../../agent/maintenance/examine.ts';
import { describeHost } from '../../../agent/operations/inventory.ts';
import { withAdminConsole } from '../../../agent/pooler/admin-console.ts';
import { type AgentSettings, readSettings } from '../../../agent/process/settings.ts';
import { pgbouncerIni, postgresqlConf } from '../../../agent/servers/configuration.ts';
import { scramVerifier } from '../../../edge/crypto/scram.ts';
import { serverCertificate } from '../../../operator/server-certificate.ts';
import { buildDatabaseName } from '../../../shared/branch/database-name.ts';
import { queryLoginName } from '../../../shared/branch/login.ts';
import { selfSigned } from '../../support/certificates.ts';
import { eventually } from '../../support/eventually.ts';
import { freePort } from '../../support/free-port.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { asClient, connect, newBranch, Project, toolOptions } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';

/** The threshold of the rule `BranchgateCertificateEnds` in docs/monitoring/alerts.yml. */
const ALERT_BELOW_MS = 21 * 86_400_000;

let servers: TestHost;
beforeAll(async () => {
  servers = await startHost();
});
afterAll(() => servers.stop());

test('a branch is created, proved, listed and dropped from a shell, without a password on the command line', async () => {
  const branch = new Project(servers.host).plan('db_shell_prod');
  const [owner, read_write, read_only] = await Promise.all(
    (['owner', 'read_write', 'read_only'] as const).map((role) => scramVerifier(branch.passwords[role])),
  );
  const access = { revision: 1, rules: [{ branch_id: null, cidr: '127.0.0.1/32' }] };
  const prepare = await servers.program(
    'branch',
    'prepare',
    ...toolOptions({
      ...newBranch(branch, { verifiers: { owner, read_write, read_only } }),
      access,
    }),
  );
  expect(prepare).toEqual({ exitCode: 0, stdout: 'done\n', stderr: '' });

  const clone = await servers.tool(
    'branch',
    'clone',
    ...toolOptions({ ...newBranch(branch), busy_wait: '1000' }),
    '--json',
  );
  expect(JSON.parse(clone.stdout)).toMatchObject({ created: true, paused_ms: 0 });
  expect((await servers.tool('branch', 'finalize', ...toolOptions(newBranch(branch)))).exitCode).toBe(0);

  const { branches, ...job } = newBranch(branch, { password: branch.passwords.read_write });
  const file = join(servers.settings.STATE_DIR, 'branches');
  await writeFile(file, `${JSON.stringify(branches)}\n`);
  await chmod(file, 0o600);
  const prove = await servers.tool('branch', 'prove', ...toolOptions({ ...job, branches: `@${file}` }));
  expect(prove).toMatchObject({ exitCode: 0 });
  await (await connect(servers.host, 'pooled', branch, 'read_write')).end();

  const list = await servers.tool('list');
  expect(list.stdout.split('\n')[0]).toMatch(/^DATABASE +STATE +BRANCH +PROJECT$/);
  expect(list.stdout).toMatch(
    new RegExp(`^db_shell_prod +ready +${branch.branch_id} +${branch.project_id}$`, 'm'),
  );
  const drop = await servers.tool(
    'project',
    'drop',
    ...toolOptions({ job_id: randomUUID(), project_id: branch.project_id }),
  );
  expect(drop.stdout).toBe('dropped_databases: 1\n');
});

test('the clone of a reset is listed', async () => {
  const job = randomUUID();
  await servers.query(`CREATE DATABASE ${buildDatabaseName(job)}`);
  const { stdout } = await servers.tool('list');
  await servers.query(`DROP DATABASE ${buildDatabaseName(job)}`);
  expect(stdout).toContain(`${buildDatabaseName(job)} is the clone of the reset by job ${job}\n`);
});

describe('exit codes, and one line with the problem and its solution', () => {
  const ids = () => toolOptions(newBranch(new Project(servers.host).plan('db_shell_prod_br_one')));

  test('3 when refused in the present state', async () => {
    const project = new Project(servers.host);
    const main = await project.create('db_busy_prod', null);
    const busy = await connect(servers.host, 'direct', main, 'owner');
    await busy.query('BEGIN; SELECT 1');
    const branch = project.plan('db_busy_prod_br_one');
    const clone = await servers.tool(
      'branch',
      'clone',
      ...toolOptions({ ...newBranch(branch), source: main.database, busy_wait: '200' }),
    );
    expect(clone).toMatchObject({ exitCode: 3, stdout: '' });
    expect(clone.stderr).toMatch(/^branchgate-agent: .*\(SOURCE_BUSY\): .*--busy-wait.*\n$/);
    await busy.end();
    await project.drop(branch);
    await project.drop(main);
  });

  test('1 when failed', async () => {
    const clone = await servers.tool('branch', 'clone', ...ids(), '--source', 'db_gone', '--busy-wait', '1');
    expect(clone).toMatchObject({ exitCode: 1, stderr: expect.stringContaining('SOURCE_MISSING') });
  });

  test.each(
    firstByDay<[string, string[]]>(1, [
      ['a missing flag', ['branch', 'drop']],
      ['an unknown command', ['brunch']],
      ['an invalid value', ['project', 'drop', '--job-id', 'x', '--project-id', 'y']],
      ['invalid JSON', ['access', 'apply', '--project-id', randomUUID(), '--access', '{']],
      ['a missing file', ['access', 'apply', '--project-id', randomUUID(), '--access', '@/nowhere']],
      ['no gateway', ['enrol', '--token', 'x']],
      ['not enrolled', ['run']],
      ['no standby', ['pooler', 'restart']],
    ]),
  )('2 for %s', async (_, words) => {
    const run = await servers.program(...words);
    expect(run).toMatchObject({ exitCode: 2, stdout: '' });
    expect(run.stderr.trimEnd()).not.toBe('');
  });

  test('4 when a server is unavailable', async () => {
    await servers.end('pooler', 'SIGKILL');
    expect(await servers.tool('host', 'describe')).toMatchObject({
      exitCode: 4,
      stderr: expect.stringContaining('start PgBouncer'),
    });
    await servers.start('pooler');
  });
});

const doctor = async () => (await servers.tool('doctor')).stdout;

test('doctor reports all problems, even when PostgreSQL is down', async () => {
  const healthy = await servers.tool('doctor', '--json');
  const { findings } = JSON.parse(healthy.stdout) as { findings: { severity: string; sentence: string }[] };
  expect(findings.filter(({ severity }) => severity === 'problem').map(({ sentence }) => sentence)).toEqual([
    'GATEWAY_URL is missing: set it to the address of the gateway.',
    'This host is not enrolled: run `enrol`.',
  ]);
  expect(healthy.exitCode).toBe(1);
  const ofPooler = expect.stringContaining('older than 1.25.2');
  expect(findings, 'this host serves no network').toContainEqual({ severity: 'advice', sentence: ofPooler });
  for (const advice of ['FIREWALL = nftables', 'A lost disk takes all databases with it'])
    expect(findings).toContainEqual({ severity: 'advice', sentence: expect.stringContaining(advice) });
  // It says so only in its last days.
  expect(healthy.stdout).not.toContain('The certificate of the servers');
  await servers.end('postgres', 'SIGKILL');
  const broken = await servers.tool('doctor');
  expect(broken.exitCode).toBe(1);
  expect(broken.stdout).toContain('start PostgreSQL');
  await servers.start('postgres');
});

/** Values of PostgreSQL that are not those of the product. */
const WRONG = {
  max_locks_per_transaction: '64',
  max_notify_queue_pages: '1048576',
  superuser_reserved_connections: '3',
  max_connections: '100',
  wal_level: 'replica',
  authentication_timeout: '1min',
  client_connection_check_interval: '0',
  log_rotation_size: '0',
  log_filename: 'postgresql-%a.log',
  max_slot_wal_keep_size: '-1',
};

test('doctor reports each setting of both servers that has another value, and only then', async () => {
  const file = join(servers.settings.PGDATA_DIR, 'postgresql.auto.conf');
  const before = await readFile(file, 'utf8');
  const startWith = async (text: string) => {
    await servers.end('postgres', 'SIGINT');
    await writeFile(file, text);
    await servers.start('postgres');
  };
  const lines = Object.entries(WRONG).map(([setting, value]) => `${setting} = '${value}'\n`);
  await startWith(`${before}${lines.join('')}`);
  await withAdminConsole(servers.settings, async (session) => {
    await session.query('SET max_client_conn = 200');
  });
  const named = [...Object.keys(WRONG), 'max_client_conn'].map(
    (setting) => new RegExp(`^(problem|advice): .*\\b${setting}\\b`, 'm'),
  );
  const wrong = await doctor();
  for (const setting of named) expect(wrong).toMatch(setting);
  await withAdminConsole(servers.settings, (session) => session.query('RELOAD'));
  await startWith(before);
  const right = await doctor();
  for (const setting of named) expect(right).not.toMatch(setting);
});

test.each<[keyof AgentSettings, Partial<AgentSettings>]>([
  ['GUARDS', { GUARDS: 'off' }],
  ['PROJECT_CONNECTIONS', { PROJECT_CONNECTIONS: 300 }],
  ['TENANT_CONNECTIONS', { TENANT_CONNECTIONS: 190 }],
  ['MIN_FREE_DISK_MB', { MIN_FREE_DISK_MB: 2 ** 40 }],
])('doctor reports %s of the agent', async (name, changes) => {
  const problems = async (settings: AgentSettings) =>
    (await examine({ ...servers.host, settings })).findings
      .filter(({ severity }) => severity === 'problem')
      .map(({ sentence }) => sentence);
  const named = expect.stringContaining(name);
  expect(await problems({ ...servers.settings, ...changes })).toContainEqual(named);
  expect(await problems(servers.settings)).not.toContainEqual(named);
});

test('doctor advises against a cluster whose first superuser is the role of the agent', async () => {
  const advice = /^advice: Functions of tenants run in autovacuum with the agent's role/m;
  expect(await doctor()).toMatch(advice);
  const renamer = queryLoginName(randomUUID());
  await servers.query(`CREATE ROLE ${renamer} SUPERUSER LOGIN`);
  const { POSTGRES_SOCKET_DIR: host, POSTGRES_PORT: port } = servers.settings;
  const session = new pg.Client({ host, port, user: renamer, database: 'branchgate' });
  await session.connect();
  await session.query('ALTER ROLE branchgate RENAME TO first; CREATE ROLE branchgate SUPERUSER LOGIN');
  expect(await doctor()).not.toMatch(advice);
  await session.query('DROP ROLE branchgate; ALTER ROLE first RENAME TO branchgate');
  await session.end();
  await servers.query(`DROP ROLE ${renamer}`);
});

test('doctor says which program answers at the port of SQL over WebSocket', async () => {
  const port = await freePort();
  const settings = { ...servers.settings, SQL_PORT: port };
  const found = async () =>
    (await examine({ ...servers.host, settings })).findings
      .map(({ sentence }) => sentence)
      .filter((sentence) => sentence.includes(`port ${port}`));
  const { certFile, keyFile } = servers.layout.tls;
  const pair = { cert: await readFile(certFile), key: await readFile(keyFile) };
  for (const [server, sentences] of [
    [createTlsServer(pair), []],
    [createServer((socket) => socket.end()), [expect.stringContaining('Another program answers')]],
  ] as const) {
    const sockets: Socket[] = [];
    server.on('connection', (socket: Socket) => sockets.push(socket));
    await once(server.listen(port, '127.0.0.1'), 'listening');
    expect(await found()).toEqual(sentences);
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  }
  if (!IS_NIGHTLY) return;
  // An agent whose sessions are older than 30 seconds has had the time to listen.
  await eventually(
    async () => expect(await found()).toEqual([expect.stringContaining('Nothing answers')]),
    120,
  );
});

test('a certificate that ends in 10 days is in doctor, in the record of the host and in the metrics', async () => {
  const { certFile } = servers.layout.tls;
  const certificate = await readFile(certFile);
  const folder = await mkdtemp(join(tmpdir(), 'branchgate-certificate-'));
  try {
    await writeFile(certFile, await readFile(selfSigned(folder, { days: 10 }).certFile));
    const warning = /^(advice: )?The certificate of the servers ends in (9|10) days: replace it/m;
    expect(await doctor()).toMatch(warning);
    const { warnings } = await describeHost(servers.host);
    expect(warnings).toContainEqual(expect.stringMatching(warning));
    const end = await readCertificateEnd(servers.host);
    expect(Number(end) - Date.now()).toBeLessThan(ALERT_BELOW_MS);
  } finally {
    await writeFile(certFile, certificate);
    await rm(folder, { recursive: true });
  }
});

test('both servers use a renewed certificate for new clients, and disconnect none of those connected', async () => {
  const { certFile, keyFile } = servers.layout.tls;
  const { POSTGRES_PORT, POOLER_PORT } = servers.settings;
  const main = await new Project(servers.host).create('db_renewed_prod', null);
  const clients = await Promise.all(
    Array.from({ length: IS_NIGHTLY ? 50 : 10 }, (_, n) =>
      connect(servers.host, n % 2 ? 'direct' : 'pooled', main, 'read_write'),
    ),
  );
  const presented = () =>
    Promise.all(
      [POSTGRES_PORT, POOLER_PORT].map(async (port) =>
        (await serverCertificate('127.0.0.1', port, null)).endsAt.toISOString(),
      ),
    );
  const folder = await mkdtemp(join(tmpdir(), 'branchgate-renewed-'));
  try {
    await Promise.all(clients.map((client) => client.query('SELECT 1')));
    const before = await presented();
    const renewed = selfSigned(folder, { days: 300 });
    await writeFile(keyFile, await readFile(renewed.keyFile));
    await writeFile(certFile, await readFile(renewed.certFile));
    // As `systemctl reload` of both units.
    await servers.query('SELECT pg_reload_conf()');
    await withAdminConsole(servers.settings, (console) => console.query('RELOAD'));
    await eventually(async () => {
      const after = await presented();
      expect(after[0]).toBe(after[1]);
      expect(before).not.toContain(after[0]);
    });
    const lost = await Promise.allSettled(clients.map((client) => client.query('SELECT 1')));
    expect(lost.filter(({ status }) => status === 'rejected')).toEqual([]);
  } finally {
    await Promise.all(clients.map((client) => client.end()));
    await rm(folder, { recursive: true });
  }
});

describe('backups', () => {
  const HOUR = 3_600_000;
  const wal = () => join(servers.settings.PGDATA_DIR, 'pg_wal');

  /** Makes the files with this ending look older. */
  async function age(folder: string, ending: string, milliseconds: number) {
    const names = (await readdir(folder)).filter((name) => name.endsWith(ending));
    expect(names).not.toEqual([]);
    const at = new Date(Date.now() - milliseconds);
    for (const name of names) await utimes(join(folder, name), at, at);
  }

  const finishSegment = () => servers.query("SELECT pg_create_restore_point('segment'), pg_switch_wal()");

  /** As pgBackRest begins and ends a backup. */
  async function backUp() {
    const session = await servers.connect();
    await session.query("SELECT pg_backup_start('doctor', fast => true)");
    await session.query('SELECT pg_backup_stop(wait_for_archive => false)');
    await session.end();
  }

  test('doctor reports that there are none, that the archive takes no WAL, and that the last one is old', async () => {
    const file = join(servers.settings.PGDATA_DIR, 'postgresql.auto.conf');
    const before = await readFile(file, 'utf8');
    const restartWith = async (text: string) => {
      await writeFile(file, text);
      await servers.end('postgres', 'SIGINT');
      await servers.start('postgres');
    };
    await restartWith(`${before}archive_mode = on\narchive_command = 'false'\n`);
    await finishSegment();
    expect(await doctor(), 'a segment may wait a little').not.toContain('WAL has waited');
    await age(join(wal(), 'archive_status'), '.ready', HOUR);
    const failing = await doctor();
    expect(failing).toMatch(/^problem: WAL has waited for the archive/m);
    expect(failing).toMatch(/^problem: There is no backup of the last 36 hours/m);
    expect(failing).toMatch(/^last_archived_wal: none$/m);

    await writeFile(file, `${before}archive_mode = on\narchive_command = 'true'\n`);
    await servers.query('SELECT pg_reload_conf()');
    await backUp();
    await eventually(async () => {
      await finishSegment();
      expect(await servers.query('SELECT FROM pg_stat_archiver WHERE archived_count > 0')).toHaveLength(1);
      const waiting = await readdir(join(wal(), 'archive_status'));
      expect(waiting.filter((name) => name.endsWith('.ready'))).toEqual([]);
    });
    const backedUp = await doctor();
    expect(backedUp).toMatch(/^last_archived_wal: 2/m);
    expect(backedUp).not.toContain('WAL has waited');
    expect(backedUp).not.toContain('There is no backup');
    expect(backedUp).toMatch(/^last_backup: 2/m);

    await age(wal(), '.backup', 37 * HOUR);
    expect(await doctor()).toMatch(/^problem: There is no backup of the last 36 hours/m);
    await restartWith(before);
  });

  test('configuration prints the files for pgBackRest', async () => {
    const { tls, agentUser } = servers.layout;
    const options = toolOptions({ tls_cert: tls.certFile, tls_key: tls.keyFile, agent_user: agentUser });
    const printed = async (file: string) => (await servers.tool('configuration', file, ...options)).stdout;
    const pgBackRest = await printed('pgbackrest.conf');
    expect(pgBackRest).toContain(`pg1-path=${servers.settings.PGDATA_DIR}\n`);
    expect(pgBackRest).toContain(`pg1-port=${servers.layout.postgres.port}\n`);
    const stanza = /^\[(?!global)(.*)\]$/m.exec(pgBackRest)?.[1];
    for (const [file, line] of firstByDay(1, [
      ['branchgate-backup.service', `--stanza=${stanza} `],
      ['postgresql.archive.conf', `--stanza=${stanza} `],
      ['branchgate-backup.timer', 'OnCalendar=daily'],
    ] as const))
      expect(await printed(file)).toContain(line);
  });
});

test('tables and rows are read and changed from a shell', async () => {
  const main = await new Project(servers.host).create('db_browsed_prod', null);
  await asClient(
    servers.host,
    'direct',
    main,
    'owner',
    "create table book (id int primary key, title text); insert into book values (1, 'One'), (2, null)",
  );
  const branch = toolOptions({ branch_id: main.branch_id, database: main.database });
  const book = [...branch, '--schema', 'public', '--table', 'book'];
  const json = async (...words: string[]) => JSON.parse((await servers.tool('--json', ...words)).stdout);
  expect((await json('table', 'list', ...branch)).tables).toMatchObject([
    { name: 'book', primary_key: ['id'] },
  ]);
  const page = ['--limit', '2', '--offset', '0'];
  const selection = ['--filter', '[{"column":"id","operator":"ge","value":1}]'];
  const order = ['--order', '[{"column":"id","direction":"desc"}]'];
  expect((await json('row', 'list', ...book, ...page, ...selection, ...order)).rows).toEqual([
    [2, null],
    [1, 'One'],
  ]);
  const wrong = await servers.tool('row', 'list', ...book, ...page, '--filter', '{"column":"id"}');
  expect(wrong).toMatchObject({ exitCode: 2, stderr: expect.stringContaining('filter') });
  const row = { schema: 'public', table: 'book', primary_key: ['id'] };
  const change = (...changes: object[]) =>
    json('row', 'change', ...branch, '--changes', JSON.stringify(changes.map((one) => ({ ...row, ...one }))));
  const title = (value: string | null) => [{ column: 'title', value }];
  const cell = { action: 'update', id: [2], values: title('Two'), expected: title(null) };
  expect((await change(cell)).outcomes).toMatchObject([{ row: [2, 'Two'], conflict: null }]);
  expect((await change(cell)).outcomes).toMatchObject([{ row: [2, 'Two'], conflict: 'changed' }]);
  const deletion = { action: 'delete', expected: [], must_exist: false };
  expect((await change({ ...deletion, id: [1] }, { ...deletion, id: [7] })).outcomes).toMatchObject([
    { skipped: false },
    { skipped: true },
  ]);
});

test.runIf(IS_NIGHTLY)('every operation has a command with help and completion', async () => {
  const help = await servers.tool('branch', 'clone', '--help');
  expect(help).toMatchObject({ exitCode: 0, stdout: expect.stringContaining('--busy-wait <number>') });
  expect((await servers.tool('row', 'list', '--help')).stdout).toContain('--offset <number>');
  for (const shell of ['bash', 'zsh', 'fish']) {
    const { stdout } = await servers.tool('completion', shell);
    for (const word of ['branch', 'prepare', 'busy-wait']) expect(stdout).toContain(word);
  }
});

test('configuration prints the files that the servers of this host use', async () => {
  const { tls, agentUser } = servers.layout;
  const options = toolOptions({ tls_cert: tls.certFile, tls_key: tls.keyFile, agent_user: agentUser });
  const hba = await servers.tool('configuration', 'pg_hba.conf', ...options);
  expect(hba.stdout).toContain(`include_if_exists "${servers.layout.rulesDir}/pg_hba.conf"`);
  const ini = await servers.tool('configuration', 'pgbouncer.ini', ...options);
  expect(ini.stdout).toContain(`listen_port = ${servers.layout.pooler.port}`);
});

test('the limit of clients of the pooler can be set up to 500, and the printed configuration contains it', async () => {
  const { tls, agentUser } = servers.layout;
  const options = toolOptions({ tls_cert: tls.certFile, tls_key: tls.keyFile, agent_user: agentUser });
  const printed = async (file: string) => (await servers.tool('configuration', file, ...options)).stdout;
  expect(await printed('pgbouncer.ini')).toContain('\nmax_client_conn = 500\n');
  expect(await printed('postgresql.conf')).toContain('\nmax_connections = 400\n');
  expect(await printed('pgbouncer.service.conf')).toContain('\nLimitNOFILE=1000\n');
  expect(await printed('postgresql.service.conf')).toMatch(/^\[Service\]\nMemoryMax=75%$/m);
  expect(await printed('branchgate-agent.service.conf')).toContain('\nAmbientCapabilities=CAP_NET_ADMIN\n');
  expect(readSettings({})).toMatchObject({ POOLER_MAX_CLIENTS: 200 });
  expect(readSettings({ POOLER_MAX_CLIENTS: '500' })).toMatchObject({ POOLER_MAX_CLIENTS: 500 });
  expect(() => readSettings({ POOLER_MAX_CLIENTS: '501' })).toThrow('POOLER_MAX_CLIENTS');
  const raised = { ...servers.layout, pooler: { ...servers.layout.pooler, maxClients: 500 } };
  expect(pgbouncerIni(raised)).toContain('\nmax_client_conn = 800\n');
  expect(postgresqlConf(raised)).toContain('\nmax_connections = 700\n');
});
