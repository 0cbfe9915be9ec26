import { afterAll, beforeAll, expect, test } from 'vitest';
import { KnownAccess, storeAccess } from '../../../agent/access/store-access.ts';
import { inTransaction, type Session } from '../../../agent/postgres/connect.ts';
import { makePassword, scramVerifier } from '../../../edge/crypto/scram.ts';
import { Access } from '../../../shared/protocol/access.ts';
import type { TestHost } from '../../support/host/host.ts';
import { type Branch, Project, removeProjects } from '../../support/host/host-project.ts';

const HERE = { branch_id: null, cidr: '127.0.0.1/32' };
const THERE = { branch_id: null, cidr: '192.0.2.0/24' };

export function describeStoredAccess(host: () => TestHost): void {
  let servers: TestHost;
  beforeAll(async () => {
    servers = host();
  });
  afterAll(() => removeProjects(servers));

  let project: Project;
  let branch: Branch;
  beforeAll(async () => {
    project = new Project(servers.host, [HERE]);
    branch = await project.create('db_stored_prod', null);
  });

  async function store(access: Partial<Access>) {
    const session = await servers.host.sessions.connect();
    project.revision += 1;
    const whole = Access.parse({ revision: project.revision, rules: [HERE], ...access });
    await inTransaction(session, () => storeAccess(session, project.id, whole));
    session.release();
  }

  const rules = (table = 'network_rule') =>
    servers.query(`SELECT branch_id, cidr::text FROM ${table} ORDER BY cidr, branch_id NULLS FIRST`);

  async function isUnenforced() {
    const [row] = await servers.query<{ unenforced: boolean }>('SELECT unenforced FROM project');
    return row?.unenforced;
  }

  /** Access before and after a change, and whether sessions may have to be ended. */
  const CHANGES: Record<string, [before: () => Partial<Access>, after: () => Partial<Access>, boolean]> = {
    'no change': [() => ({}), () => ({}), false],
    'one more network': [() => ({}), () => ({ rules: [HERE, THERE] }), false],
    'a network of the branch': [
      () => ({}),
      () => ({ rules: [HERE, { ...HERE, branch_id: branch.branch_id }] }),
      false,
    ],
    'a network removed': [() => ({ rules: [HERE, THERE] }), () => ({}), true],
    'a network restricted to the branch': [
      () => ({}),
      () => ({ rules: [{ ...HERE, branch_id: branch.branch_id }] }),
      true,
    ],
    'a network over HTTP alone': [() => ({}), () => ({ sql_rules: [THERE] }), false],
    'a network restricted to HTTP': [() => ({ rules: [HERE, THERE] }), () => ({ sql_rules: [THERE] }), true],
    'the branch closed': [() => ({}), () => ({ closed: [branch.branch_id] }), true],
    'the branch open again': [() => ({ closed: [branch.branch_id] }), () => ({}), false],
    'a write block': [() => ({}), () => ({ write_blocked: true }), false],
    'the end of a write block': [() => ({ write_blocked: true }), () => ({}), true],
  };

  test('what is stored while changes are read is read with its own change', async () => {
    const { branch_id, job_id, database } = project.plan('db_stored_prod_br_late');
    const known = new KnownAccess();
    const session = await servers.host.sessions.connect();
    await known.read(session);
    // A creation claims the branch in one transaction, and stores its logins in the next one.
    await servers.query(
      'INSERT INTO branch (branch_id, project_id, job_id, database) VALUES ($1, $2, $3, $4)',
      [...[branch_id, project.id, job_id, database]],
    );
    let isStored = false;
    const query = async (...asked: Parameters<Session['query']>) => {
      const result = await session.query(...asked);
      if (!isStored && /FROM access_change/.test(String(asked[0]))) {
        isStored = true;
        await servers.query("INSERT INTO login (login, branch_id, verifier) VALUES ('late', $1, 'x')", [
          branch_id,
        ]);
      }
      return result;
    };
    await known.read({ query } as unknown as Session);
    expect([isStored, known.of(branch_id)]).toEqual([true, undefined]);
    expect(await known.read(session)).toEqual([branch_id]);
    expect(known.of(branch_id)).toMatchObject({ database, verifiers: { late: 'x' } });
    session.release();
    await servers.query('DELETE FROM login WHERE branch_id = $1', [branch_id]);
    await servers.query('DELETE FROM branch WHERE branch_id = $1', [branch_id]);
  });

  test.each(Object.entries(CHANGES))('%s', async (_, [before, after, leavesSessions]) => {
    await store(before());
    await servers.query('UPDATE project SET unenforced = false');
    await servers.query('UPDATE login SET end_from = NULL');
    await store(after());
    expect(await isUnenforced()).toBe(leavesSessions);
    const { rules: all = [HERE], sql_rules: sql = [] } = after();
    expect(await rules()).toEqual(all);
    expect(await rules('sql_rule')).toEqual(sql);
    // From here the packet filter and the rule files of both ports are made.
    const session = await servers.host.sessions.connect();
    const known = new KnownAccess();
    await known.read(session);
    session.release();
    const admitted = known.branches.flatMap(({ cidrs }) => cidrs);
    for (const { cidr } of sql) expect(admitted).not.toContain(cidr);
  });

  test('a new password stays unenforced through later changes until its sessions are ended', async () => {
    const verifiers = { [branch.branch_id]: { read_only: await scramVerifier(makePassword()) } };
    await store({ verifiers });
    expect(await isUnenforced()).toBe(true);
    await store({});
    expect(await isUnenforced()).toBe(true);
  });

  test('the tenant is stored, and access of a gateway that does not know it leaves it', async () => {
    const tenant = async () => {
      const [row] = await servers.query<{ tenant: string }>(
        'SELECT tenant FROM project WHERE project_id = $1',
        [project.id],
      );
      return row?.tenant;
    };
    await store({ tenant: 'acme' });
    expect(await tenant()).toBe('acme');
    await store({});
    expect(await tenant()).toBe('acme');
  });
}
