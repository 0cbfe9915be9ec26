import { randomUUID } from 'node:crypto';
import { appendFile, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { closeHost, openHost } from '../../../agent/host/host.ts';
import { recover } from '../../../agent/maintenance/recover.ts';
import { runOperation } from '../../../agent/operations/handlers.ts';
import type { Session } from '../../../agent/postgres/connect.ts';
import { withHostLock } from '../../../agent/postgres/locks.ts';
import { loginName } from '../../../shared/branch/login.ts';
import type { TestHost } from '../../support/host/host.ts';
import {
  type Branch,
  connect,
  type Port,
  Project,
  type Rule,
  removeProjects,
} from '../../support/host/host-project.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const HERE = '127.0.0.1/32';
const ELSEWHERE = '192.0.2.0/24';

export function describeRules(host: () => TestHost): void {
  let servers: TestHost;
  let project: Project;
  let main: Branch;
  let branch: Branch;

  beforeAll(async () => {
    servers = host();
    project = new Project(servers.host, []);
    main = await project.create('db_rules_prod', null);
    branch = await project.create('db_rules_prod_br_one', main.database);
  });
  afterAll(() => removeProjects(servers));

  const apply = (revision: number, rules: Rule[], project_id = project.id) =>
    runOperation(servers.host, 'access.apply', { project_id, access: { revision, rules } });

  /** The connections admitted from this machine, as `<port> <database>`. */
  async function admitted(): Promise<string[]> {
    const pairs = (['direct', 'pooled'] satisfies Port[]).flatMap((port) =>
      [main, branch].map((of) => ({ port, of })),
    );
    const connected = await Promise.all(
      pairs.map(({ port, of }) =>
        connect(servers.host, port, of, 'read_write').then(
          async (client) => {
            await client.end();
            return [`${port} ${of.database}`];
          },
          () => [],
        ),
      ),
    );
    return connected.flat();
  }

  const ALL_ADMITTED = [
    'direct db_rules_prod',
    'direct db_rules_prod_br_one',
    'pooled db_rules_prod',
    'pooled db_rules_prod_br_one',
  ];

  test('when a change of rules resolves, it is in effect on both ports', async () => {
    expect(await admitted()).toEqual([]);
    await apply(2, [{ branch_id: null, cidr: HERE }]);
    expect(await admitted()).toEqual(ALL_ADMITTED);
    await apply(3, [{ branch_id: branch.branch_id, cidr: HERE }]);
    expect(await admitted()).toEqual(['direct db_rules_prod_br_one', 'pooled db_rules_prod_br_one']);
    await apply(4, [{ branch_id: null, cidr: ELSEWHERE }]);
    expect(await admitted()).toEqual([]);
  });

  test('an older revision never overwrites a newer one; the same one may be repeated', async () => {
    await apply(6, [{ branch_id: null, cidr: HERE }]);
    await apply(5, []);
    expect(await admitted()).toEqual(ALL_ADMITTED);
    await apply(6, [{ branch_id: null, cidr: HERE }]);
    expect(await admitted()).toEqual(ALL_ADMITTED);
    await project.prepare(branch);
    expect(await admitted()).toEqual(ALL_ADMITTED);
  });

  test('a database that two calls remove from the pooler returns after the last one', async () => {
    const { rules } = servers.host;
    await apply(7, [{ branch_id: null, cidr: HERE }]);
    const longer = Promise.withResolvers<void>();
    const first = rules.withhold([branch.database], () => longer.promise);
    await rules.withhold([branch.database], async () => {});
    expect(await admitted()).toEqual(ALL_ADMITTED.slice(0, 3));
    longer.resolve();
    await first;
    expect(await admitted()).toEqual(ALL_ADMITTED);
  });

  test('rules of an unknown project are not stored', async () => {
    expect(await apply(1, [{ branch_id: null, cidr: HERE }], randomUUID())).toEqual({ revision: 1 });
    expect((await runOperation(servers.host, 'host.inventory', {})).projects).toHaveLength(1);
  });

  test.each([
    'all',
    '0.0.0.0/0 trust',
    '10.0.0.1/8',
    '127.0.0.1',
    'samenet',
    '10.0.0.0/8\nlocal all all trust',
  ])('the network %j is rejected before a file is written', async (cidr) => {
    await expect(apply(100, [{ branch_id: null, cidr }])).rejects.toMatchObject({ code: 'INVALID_CALL' });
  });

  test('networks that PostgreSQL spells in another way are in effect too', async () => {
    // It writes the first two as `::1.2.3.4` and `::0.0.0.2`. A failure here would stop every change of this
    // host.
    const cidrs = ['::102:304/128', '::2/128', '::/96', '1:0:2:0:3:0:4:5/128', HERE];
    const rules = cidrs.map((cidr) => ({ branch_id: null, cidr }));
    await apply(8, rules);
    expect(await admitted()).toEqual(ALL_ADMITTED);
    const hba = await readFile(join(servers.layout.rulesDir, 'pg_hba.conf'), 'utf8');
    for (const cidr of cidrs) expect(hba).toContain(` ${cidr} scram-sha-256`);
  });

  const loadTime = async () =>
    (await servers.query<{ at: Date }>('SELECT pg_conf_load_time() AS at'))[0]?.at.getTime() ?? 0;
  const networkRoles = () =>
    servers.query<{ rolname: string }>(
      "SELECT rolname FROM pg_roles WHERE rolname ~ '^net_[0-9a-f]{32}$' ORDER BY 1",
    );

  test('with known networks, a branch, a rule, a block and an expiry reload nothing at PostgreSQL', async () => {
    const both = [HERE, ELSEWHERE].map((cidr) => ({ branch_id: null, cidr }));
    const own = new Project(servers.host, both);
    const first = await own.create('db_reload_prod', null);
    const before = await loadTime();
    const second = await own.create('db_reload_prod_br_two', first.database);
    const lets = async (of: Branch) =>
      (await connect(servers.host, 'direct', of, 'read_write').catch(() => null))?.end().then(() => true) ??
      false;
    const change = (revision: number, rules: Rule[], more = {}) =>
      runOperation(servers.host, 'access.apply', {
        project_id: own.id,
        access: { revision, rules, ...more },
      });
    expect([await lets(first), await lets(second)]).toEqual([true, true]);
    await change(2, [{ branch_id: second.branch_id, cidr: HERE }]);
    expect([await lets(first), await lets(second)]).toEqual([false, true]);
    await change(3, both, { closed: [second.branch_id] });
    expect([await lets(first), await lets(second)]).toEqual([true, false]);
    await change(4, both);
    const { rules } = servers.host;
    for (const address of [HERE, null]) {
      await rules.block('attempts', [{ branch_id: first.branch_id, address }]);
      expect(await lets(first), 'before the sync').toBe(false);
      await rules.sync();
      expect([await lets(first), await lets(second)]).toEqual([false, true]);
      await rules.block('attempts', []);
      await rules.sync();
      expect(await lets(first)).toBe(true);
    }
    await own.drop(second);
    expect(await loadTime()).toBe(before);
    await change(5, [...both, { branch_id: null, cidr: '198.51.100.0/24' }]);
    expect(await loadTime(), 'a new network needs a line').toBeGreaterThan(before);
    await runOperation(servers.host, 'project.drop', { project_id: own.id, job_id: randomUUID() });
  });

  test('the role of a network is dropped with its project, and after its last rule at the next reload', async () => {
    const before = await networkRoles();
    const own = new Project(servers.host, [{ branch_id: null, cidr: ELSEWHERE }]);
    await own.create('db_unused_prod', null);
    const [role] = (await networkRoles()).filter(
      ({ rolname }) => !before.some((one) => one.rolname === rolname),
    );
    const change = (revision: number, cidr: string) =>
      runOperation(servers.host, 'access.apply', {
        project_id: own.id,
        access: { revision, rules: [{ branch_id: null, cidr }] },
      });
    await change(2, '198.51.100.0/24');
    await runOperation(servers.host, 'host.inventory', {});
    expect(await networkRoles()).not.toContainEqual(role);
    expect(await networkRoles()).toHaveLength(before.length + 1);
    await runOperation(servers.host, 'project.drop', { project_id: own.id, job_id: randomUUID() });
    expect(await networkRoles()).toEqual(before);
  });

  test('a host of an earlier release gets its networks when the agent starts', async () => {
    const known = await networkRoles();
    const old = `hostssl "${main.database}" "${loginName(main.branch_id, 'read_write')}" ${HERE} scram-sha-256\n`;
    await servers.query('DELETE FROM network');
    for (const { rolname } of known) await servers.query(`DROP ROLE ${rolname}`);
    await writeFile(join(servers.layout.rulesDir, 'pg_hba.conf'), old);
    const restarted = await openHost(servers.settings);
    expect(await recover(restarted)).toEqual([]);
    await closeHost(restarted);
    expect(await admitted()).toEqual(ALL_ADMITTED);
    expect(await readFile(join(servers.layout.rulesDir, 'pg_hba.conf'), 'utf8')).not.toContain(main.database);
  });

  test('concurrent changes share reloads, and all are in effect afterwards', async () => {
    const changes = IS_NIGHTLY ? 20 : 6;
    const last = 9 + changes;
    await Promise.all(
      Array.from({ length: changes }, (_, n) =>
        apply(10 + n, [{ branch_id: null, cidr: 10 + n === last ? HERE : ELSEWHERE }]),
      ),
    );
    expect(await admitted()).toEqual(ALL_ADMITTED);
    const before = await loadTime();
    await apply(last, [{ branch_id: null, cidr: HERE }]);
    expect(await loadTime(), 'without a change there is no reload').toBe(before);
  });

  test('a rule file that someone else edited is corrected by the next change', async () => {
    const path = join(servers.layout.rulesDir, 'pg_hba.conf');
    await appendFile(path, `hostssl all all ${HERE} trust\n`);
    await apply(40, [{ branch_id: null, cidr: HERE }]);
    expect(await readFile(path, 'utf8')).not.toContain('trust');
  });

  test('what another process stores is in the next sync, also if a later transaction was read before', async () => {
    const rules = () => readFile(join(servers.layout.rulesDir, 'pgbouncer_hba.conf'), 'utf8');
    const late = '203.0.113.0/24';
    const other = await servers.connect();
    try {
      await other.query('BEGIN');
      await other.query('INSERT INTO network_rule (project_id, branch_id, cidr) VALUES ($1, $2, $3)', [
        project.id,
        branch.branch_id,
        late,
      ]);
      await apply(41, [{ branch_id: null, cidr: ELSEWHERE }]);
      expect(await rules()).not.toContain(late);
      await other.query('COMMIT');
      await servers.host.rules.sync();
      expect(await rules()).toContain(late);
    } finally {
      await other.end();
    }
  });

  test('a line that PostgreSQL rejects is removed, because it would prevent the next start', async () => {
    const mainFile = join(servers.settings.PGDATA_DIR, 'pg_hba.conf');
    const generated = join(servers.layout.rulesDir, 'pg_hba.conf');
    const [hba, rules] = await Promise.all([readFile(mainFile, 'utf8'), readFile(generated, 'utf8')]);
    await writeFile(mainFile, `${hba}nonsense\n`);
    const unknown = [{ branch_id: null, cidr: '198.51.100.0/24' }];
    await expect(apply(50, unknown)).rejects.toMatchObject({
      code: 'RULES_NOT_APPLIED',
      message: expect.stringContaining('nonsense'),
    });
    expect(await readFile(generated, 'utf8')).toBe(rules);
    await writeFile(mainFile, hba);
    await apply(50, unknown);
    expect(await admitted()).toEqual([]);
  });

  test('a blocked network of one branch is refused on both ports, and others are not', async () => {
    await apply(55, [{ branch_id: null, cidr: HERE }]);
    const { rules } = servers.host;
    const blocked = (address: string | null) => ({ branch_id: branch.branch_id, address });
    await rules.block('attempts', [blocked('127.0.0.3/32'), blocked('2001:db8:1:2::/64')]);
    await rules.sync();
    expect(await admitted()).toEqual(ALL_ADMITTED);
    for (const address of [HERE, null]) {
      await rules.block('attempts', [blocked(address)]);
      await rules.sync();
      expect(await admitted()).toEqual(['direct db_rules_prod', 'pooled db_rules_prod']);
    }
    await rules.block('attempts', []);
    await rules.sync();
    expect(await admitted()).toEqual(ALL_ADMITTED);
  });

  test('a blocked branch stays blocked when a network of another one is', async () => {
    await servers.query(
      "INSERT INTO blocked_branch (branch_id, reason, until) VALUES ($1, 'locks', now() + interval '1 minute')",
      [branch.branch_id],
    );
    const { rules } = servers.host;
    await rules.sync();
    await rules.block('attempts', [{ branch_id: main.branch_id, address: '127.0.0.3/32' }]);
    expect(await admitted()).toEqual(['direct db_rules_prod', 'pooled db_rules_prod']);
    await rules.block('attempts', []);
    await servers.query('DELETE FROM blocked_branch');
    await rules.sync();
    expect(await admitted()).toEqual(ALL_ADMITTED);
  });

  test('without the pooler a change fails, is stored, and takes effect when the pooler is back', async () => {
    await servers.end('pooler', 'SIGKILL');
    await expect(apply(60, [{ branch_id: null, cidr: HERE }])).rejects.toMatchObject({
      code: 'POOLER_UNAVAILABLE',
    });
    await servers.start('pooler');
    await apply(60, [{ branch_id: null, cidr: HERE }]);
    expect(await admitted()).toEqual(ALL_ADMITTED);
  });

  test.each(['rules', 'roles'] as const)(
    'a stopped process that holds the lock `%s` holds up no operation for long',
    async (lock) => {
      const holder = await servers.connect();
      const session = await servers.connect();
      try {
        await holder.query('SELECT pg_advisory_lock(hashtextextended($1, 0))', [lock]);
        // Ends what hangs: without a limit, the lock is taken then.
        await holder.query("SET idle_session_timeout = '10s'");
        // The limit of the statement that waits, in a hundredth of its time.
        const hasty = {
          query: (text: string, values?: unknown[]) =>
            session.query(text.replace("'20s'", "'200ms'"), values),
        };
        await expect(withHostLock(hasty as unknown as Session, lock, async () => {})).rejects.toMatchObject({
          code: 'HOST_BUSY',
          message: expect.stringContaining(`held the lock ${lock} for 20 s`),
        });
      } finally {
        await session.end();
        await holder.end();
      }
    },
  );
}
