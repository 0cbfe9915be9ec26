import { globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { scramVerifier } from '../../edge/crypto/scram.ts';
import { groupName, loginName } from '../../shared/branch/login.ts';
import { Api, type BranchBody, type Credentials, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { connectOnHost, socketsOf } from '../support/host/host-session.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { dropBranch, dropProject } from '../support/records/jobs.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/** How the state of a host follows the records: when it connects, and when they change. */

let stack: Stack;
let api: Api;
/** A session on the host. */
let host: pg.Client;

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  api = new Api(stack.url, await stack.token());
  host = await connectOnHost(socketsOf(stack.state).postgres, 'branchgate');
});
afterAll(async () => {
  await host.end();
  await stack.stop();
});

const databases = async () => {
  const { rows } = await host.query<{ datname: string }>(
    "select datname from pg_database where datname like 'db\\_%'",
  );
  return rows.map(({ datname }) => datname);
};
const roles = async (id: string) => {
  const { rows } = await host.query('select rolname from pg_roles where rolname like $1', [
    `%${id.replaceAll('-', '')}%`,
  ]);
  return rows;
};

function withD1<T>(work: (d1: DatabaseSync) => T): T {
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { timeout: 5000 });
  try {
    return work(d1);
  } finally {
    d1.close();
  }
}

const auditedBranches = (event: string): unknown[] =>
  withD1((d1) =>
    d1
      .prepare('select branch_id from audit_events where name = ?')
      .all(event)
      .map(({ branch_id }) => branch_id),
  );

/** Sets the end of a life or a lease in the record, so that the test needs not wait for it. */
function setEnd(branchId: string, endsAt: number, column = 'expires_at'): void {
  withD1((d1) => d1.prepare(`update project_branches set ${column} = ? where id = ?`).run(endsAt, branchId));
}

describe('when a host connects', () => {
  let project: ProjectBody;
  beforeAll(async () => {
    project = await api.project('Reconciled');
    await api.allow(project.id);
  });

  /** Reconnects the host, which triggers a reconciliation. */
  async function relink(): Promise<void> {
    await stack.kill('agent');
    await stack.start('agent');
    await stack.untilReady();
  }

  async function recordOf(branch: BranchBody) {
    const path = `/api/v1/projects/${project.id}/branches/lookup?id=${branch.id}`;
    return (await api.get<{ matches: BranchBody[] }>(path)).body.matches[0];
  }

  /** Creates a branch on the host with the control tool, without a record in the gateway. */
  async function makeUnrecorded(
    projectId: string,
    database: string,
    branchId: string = crypto.randomUUID(),
  ): Promise<string> {
    const job = crypto.randomUUID();
    const branchOf = (member: object) => [
      ...['--job-id', job, '--project-id', projectId],
      ...['--branches', JSON.stringify([{ branch_id: branchId, database, build_id: job, ...member }])],
    ];
    const verifier = await scramVerifier('a password that nobody has');
    const verifiers = { owner: verifier, read_write: verifier, read_only: verifier };
    const access = JSON.stringify({ revision: 0, rules: [] });
    await stack.agentTool('branch', 'prepare', ...branchOf({ verifiers }), '--access', access);
    await stack.agentTool(
      'branch',
      'clone',
      ...branchOf({}),
      '--source',
      project.main_branch.database_name,
      '--busy-wait',
      '3000',
    );
    await stack.agentTool('branch', 'finalize', ...branchOf({}));
    expect(await databases()).toContain(database);
    return branchId;
  }

  test('a database that a job created and no record claims is dropped, with its logins', async () => {
    const branch = await api.branch(project.id, 'dropped');
    await dropBranch(api, project.id, branch.id);
    await makeUnrecorded(project.id, branch.database_name, branch.id);
    const unrecorded = [branch.id];
    if (IS_NIGHTLY) {
      const gone = await api.project('Gone');
      await dropProject(api, gone.id);
      unrecorded.push(gone.id, await makeUnrecorded(gone.id, 'db_gone_prod_br_unrecorded'));
    }
    await relink();
    await eventually(async () => {
      expect(await databases()).toEqual([project.main_branch.database_name]);
      for (const id of unrecorded) expect(await roles(id)).toEqual([]);
    });
  });

  test.runIf(IS_NIGHTLY)(
    'a database that no job created is left alone, and the log says what to do',
    async () => {
      const branchId = await makeUnrecorded(project.id, `${project.main_branch.database_name}_br_unknown`);
      const unknownProject = crypto.randomUUID();
      await makeUnrecorded(unknownProject, 'db_unknown_prod_br_unrecorded');
      const before = await databases();
      await relink();
      const log = join(devFolder(stack.devDir).logs, 'gateway.log');
      await eventually(async () => {
        const logged = readFileSync(log, 'utf8')
          .split('\n')
          .filter((line) => line.includes('"reconcile.stranger"'));
        for (const id of [branchId, unknownProject]) expect(logged.join()).toContain(id);
        expect(logged.join()).toContain('reconciliation.md');
      });
      expect(await databases()).toEqual(before);
      await stack.agentTool(
        'project',
        'drop',
        '--job-id',
        crypto.randomUUID(),
        '--project-id',
        unknownProject,
      );
      const identity = ['--project-id', project.id, '--branch-id', branchId];
      const database = `${project.main_branch.database_name}_br_unknown`;
      await stack.agentTool(
        'branch',
        'drop',
        '--job-id',
        crypto.randomUUID(),
        ...identity,
        '--database',
        database,
      );
      expect(await databases()).toEqual([project.main_branch.database_name]);
    },
  );

  test('a record without a database becomes failed, is audited once, and frees its name', async () => {
    const lost = await api.branch(project.id, 'lost');
    const other = await api.branch(project.id, 'other');
    await host.query(`drop database "${lost.database_name}" with (force)`);
    await relink();
    await eventually(async () => expect(await recordOf(lost)).toMatchObject({ status: 'failed' }));
    expect(await recordOf(other)).toMatchObject({ status: 'active' });
    await relink();
    expect(auditedBranches('branch.lost')).toEqual([lost.id]);
    const again = await eventually(() => api.branch(project.id, 'lost'));
    expect(again.status).toBe('active');
    const { database_url } = await api.credentials(project.id, 'lost');
    expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test.runIf(IS_NIGHTLY)(
    'a database that was missing for a while is not dropped when it is back',
    async () => {
      const missing = await api.branch(project.id, 'missing');
      const rename = (from: string, to: string) =>
        host.query(`alter database "${from}" with connection limit 0`).then(async () => {
          await host.query('select pg_terminate_backend(pid) from pg_stat_activity where datname = $1', [
            from,
          ]);
          await host.query(`alter database "${from}" rename to "${to}"`);
          await host.query(`alter database "${to}" with connection limit -1`);
        });
      await rename(missing.database_name, 'elsewhere');
      await relink();
      await eventually(async () => expect(await recordOf(missing)).toMatchObject({ status: 'failed' }));
      await rename('elsewhere', missing.database_name);
      await relink();
      await eventually(async () => expect(await recordOf(missing)).toMatchObject({ status: 'active' }));
      expect(auditedBranches('branch.found')).toEqual([missing.id]);
      const { database_url } = await api.credentials(project.id, 'missing');
      expect(await query(database_url, 'select 1 as one')).toEqual([{ one: 1 }]);
      await api.delete(`/api/v1/projects/${project.id}/branches/${missing.id}`);
    },
  );

  test.runIf(IS_NIGHTLY)('rules that the host has lost are restored', async () => {
    const { direct_url } = await api.credentials(project.id, 'main');
    await host.query('update project set access_revision = 0; delete from network_rule');
    await relink();
    await eventually(async () => expect(await query(direct_url, 'select 1 as one')).toEqual([{ one: 1 }]));
    const { rows } = await host.query<{ n: string }>(
      'select count(*) as n from network_rule where project_id = $1',
      [project.id],
    );
    expect(Number(rows[0]?.n)).toBeGreaterThan(0);
  });

  test.runIf(IS_NIGHTLY)('a password that a login set itself is reset', async () => {
    const { direct_url } = await api.credentials(project.id, 'main');
    const login = loginName(project.main_branch.id, 'owner');
    const verifier = () => host.query('select rolpassword from pg_authid where rolname = $1', [login]);
    const before = (await verifier()).rows;
    await query(direct_url, `set role none; alter role ${login} password 'my own choice'`);
    await expect(query(direct_url, 'select 1')).rejects.toMatchObject({ code: '28P01' });
    await relink();
    // Not by a login: attempts with a wrong password are limited.
    await eventually(async () => expect((await verifier()).rows).toEqual(before));
    expect(await query(direct_url, 'select 1 as one')).toEqual([{ one: 1 }]);
  });

  test('correct state is not changed', async () => {
    const { body } = await api.get(`/api/v1/projects/${project.id}`);
    expect(body).toMatchObject({ status: 'active', branch_count: 3 });
    expect(await roles(project.id)).toHaveLength(3);
    expect(
      await host.query('select 1 from pg_roles where rolname = $1', [groupName(project.id, 'owner')]),
    ).toMatchObject({ rowCount: 1 });
  });
});

/**
 * Expiry, rotation and removed rules all reach the host as one revision of the project's access
 * (specification 3.1, 4.3).
 */
describe('the access of a project', () => {
  let project: ProjectBody;
  const clients: pg.Client[] = [];
  beforeAll(async () => {
    project = await api.project('Access');
  });
  afterAll(() => Promise.all(clients.map((client) => client.end().catch(() => {}))));

  const branchPath = (branch: string) => `/api/v1/projects/${project.id}/branches/${branch}`;

  /** Opens one session of each login, on each port. */
  async function openSessions(branch: string): Promise<pg.Client[]> {
    const usual = await api.credentials(project.id, branch);
    const reading = await api.credentials(project.id, branch, '?role=read_only');
    const urls = [usual, reading].flatMap(({ database_url = '', direct_url = '' }) => [
      database_url,
      direct_url,
    ]);
    const opened = await Promise.all(urls.map((url) => connect(url)));
    clients.push(...opened);
    return opened;
  }

  const countOpen = async (sessions: pg.Client[]) =>
    (
      await Promise.all(
        sessions.map((session) =>
          session
            .query('select 1')
            .then(() => 1)
            .catch(() => 0),
        ),
      )
    ).filter(Boolean).length;

  const logsIn = (url: string) =>
    query(url, 'select 1').then(
      () => true,
      () => false,
    );
  const loginsOnBothPorts = ({ database_url, direct_url }: Credentials) =>
    Promise.all([database_url, direct_url].map(logsIn));

  const statusOf = async (branch: string) => {
    const { body } = await api.get<{ matches: { status: string }[] }>(
      `/api/v1/projects/${project.id}/branches/lookup?id=${branch}`,
    );
    return body.matches[0]?.status;
  };

  describe('expiry', () => {
    /** The coordinator checks its records 20 s after the last change. */
    const CHECKS_AFTER_MS = 20_000;

    test('closes logins and sessions on both ports; another lifespan makes the branch active again', async () => {
      const branch = await api.branch(project.id, 'short-lived');
      const sessions = await openSessions('short-lived');
      const credentials = await api.credentials(project.id, 'short-lived');
      const expiresAt = Date.now() + CHECKS_AFTER_MS + 2_000;
      setEnd(branch.id, expiresAt);
      expect((await api.patch(branchPath(project.main_branch.id), { lifespan: '7d' })).status).toBe(403);
      await api.allow(project.id, '203.0.113.0/24');
      while (Date.now() < expiresAt - 7_000) await new Promise((resolve) => setTimeout(resolve, 1_000));
      expect(await countOpen(sessions)).toBe(4);
      await eventually(async () => expect(await countOpen(sessions)).toBe(0));
      expect(await loginsOnBothPorts(credentials)).toEqual([false, false]);
      expect(await statusOf(branch.id)).toBe('expired');
      expect(await api.get(`${branchPath(branch.id)}/credentials`)).toMatchObject({
        status: 409,
        body: { error: 'BRANCH_NOT_ACTIVE' },
      });
      const { body } = await api.get<{ audit_events: unknown[] }>('/api/v1/audit-events?name=branch.expired');
      expect(body.audit_events).toEqual([
        expect.objectContaining({ branch_id: branch.id, project_id: project.id, actor_id: null }),
      ]);

      const back = await api.patch(branchPath(branch.id), { lifespan: '1m' });
      expect(back).toMatchObject({ status: 200, body: { status: 'active', lifespan: '1m' } });
      expect(await loginsOnBothPorts(credentials)).toEqual([true, true]);
    });

    test.runIf(IS_NIGHTLY)(
      'takes effect after the host was disconnected and the gateway was killed',
      async () => {
        const branch = await api.branch(project.id, 'while-away');
        const sessions = await openSessions('while-away');
        const credentials = await api.credentials(project.id, 'while-away');
        await stack.kill('agent');
        setEnd(branch.id, Date.now() - 1_000);
        await api.post(`/api/v1/projects/${project.id}/network-rules`, { cidr: '198.51.100.0/24' });
        await eventually(async () => expect(await statusOf(branch.id)).toBe('expired'));
        expect(await countOpen(sessions)).toBe(4);
        await stack.kill('gateway');
        await stack.start('gateway');
        await stack.start('agent');
        await stack.untilReady();
        await eventually(async () => expect(await countOpen(sessions)).toBe(0));
        expect(await loginsOnBothPorts(credentials)).toEqual([false, false]);
      },
    );
  });

  test('removing a network rule ends its sessions on both ports, and no sessions of other branches', async () => {
    const branch = await api.branch(project.id, 'unruled');
    await api.branch(project.id, 'ruled');
    const sessions = await openSessions('unruled');
    const neighbours = await openSessions('ruled');
    const path = `/api/v1/projects/${project.id}/network-rules`;
    const { body } = await api.get<{ network_rules: { id: string }[] }>(`${path}?branch_id=${branch.id}`);
    expect((await api.delete(`${path}/${body.network_rules[0]?.id}`)).status).toBe(204);
    expect(await countOpen(sessions)).toBe(0);
    expect(await countOpen(neighbours)).toBe(4);
  });

  describe('rotation', () => {
    const rotate = (branch: string, key?: string, body?: unknown) =>
      api.post<Credentials>(`${branchPath(branch)}/credentials/rotate`, body, {
        ...(key !== undefined && { 'Idempotency-Key': key }),
      });

    test('refuses the old passwords of all three logins immediately and ends their sessions', async () => {
      await api.branch(project.id, 'rotated');
      const sessions = await openSessions('rotated');
      const old = await api.credentials(project.id, 'rotated');
      const reading = await api.credentials(project.id, 'rotated', '?role=read_only');
      const rotated = await rotate('rotated');
      expect(rotated.status).toBe(200);
      expect(rotated.headers.get('cache-control')).toBe('no-store');
      expect(Object.keys(rotated.body)).toEqual(Object.keys(old));
      expect(await countOpen(sessions)).toBe(0);
      expect(await loginsOnBothPorts(old)).toEqual([false, false]);
      expect(await loginsOnBothPorts(rotated.body)).toEqual([true, true]);
      expect(await loginsOnBothPorts(reading)).toEqual([false, false]);
      expect(await api.credentials(project.id, 'rotated')).toEqual(rotated.body);
      const readingNow = await api.credentials(project.id, 'rotated', '?role=read_only');
      expect(await loginsOnBothPorts(readingNow)).toEqual([true, true]);
    });

    test('can be narrowed to the read-only login', async () => {
      await api.branch(project.id, 'reading-rotated');
      const sessions = await openSessions('reading-rotated');
      const usual = await api.credentials(project.id, 'reading-rotated');
      const reading = await api.credentials(project.id, 'reading-rotated', '?role=read_only');
      const rotated = await rotate('reading-rotated', undefined, { roles: ['read_only'] });
      expect(rotated.status).toBe(200);
      // The direct session of the owner stays; the pooler disconnects all clients of the database.
      expect(await countOpen(sessions)).toBe(1);
      expect(await loginsOnBothPorts(reading)).toEqual([false, false]);
      expect(await loginsOnBothPorts(usual)).toEqual([true, true]);
      expect(await loginsOnBothPorts(rotated.body)).toEqual([true, true]);
      expect(rotated.body).toEqual(await api.credentials(project.id, 'reading-rotated', '?role=read_only'));
    });

    test.runIf(IS_NIGHTLY)('happens once under one key, and five times an hour per branch', async () => {
      const branch = await api.branch(project.id, 'often-rotated');
      const first = await rotate(branch.id, 'once');
      const again = await rotate(branch.id, 'once');
      expect(again.headers.get('idempotency-replayed')).toBe('true');
      expect(again).toMatchObject({ status: 200, body: first.body });
      for (let times = 2; times <= 5; times++) expect((await rotate(branch.id)).status).toBe(200);
      const refused = await rotate(branch.id);
      expect(refused).toMatchObject({ status: 429, body: { error: 'RATE_LIMITED' } });
      expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(3_000);
      expect((await rotate('rotated')).status).toBe(200);
      const { body } = await api.get<{ audit_events: { branch_id: string; metadata: unknown }[] }>(
        '/api/v1/audit-events?name=branch.credentials.rotated',
      );
      const ofBranch = body.audit_events.filter(({ branch_id }) => branch_id === branch.id);
      expect(ofBranch).toHaveLength(5);
      expect(ofBranch[0]?.metadata).toEqual({ roles: ['owner', 'read_write', 'read_only'] });
    });

    test('works for main, refuses an unknown branch, and changes nothing while the host is disconnected', async () => {
      await api.post(`/api/v1/projects/${project.id}/network-rules`, { cidr: '127.0.0.1' }, FROM_LOOPBACK);
      const before = await api.credentials(project.id, 'main');
      expect((await rotate('nowhere')).status).toBe(404);
      await stack.kill('agent');
      await eventually(async () => expect((await rotate('main')).status).toBe(503));
      await stack.start('agent');
      await stack.untilReady();
      expect(await api.credentials(project.id, 'main')).toEqual(before);
      expect(await loginsOnBothPorts(before)).toEqual([true, true]);
      const rotated = await rotate('main');
      expect(rotated.status).toBe(200);
      expect(await loginsOnBothPorts(before)).toEqual([false, false]);
      expect(await loginsOnBothPorts(rotated.body)).toEqual([true, true]);
    });
  });

  describe('a lease that ends', () => {
    const lookUp = async (name: string) => {
      const path = branchPath(`lookup?name=${name}`);
      return (await api.get<{ matches: unknown[] }>(path)).body.matches;
    };

    async function expectGone(branch: BranchBody, name: string, sessions: pg.Client[]) {
      await eventually(async () => {
        expect(await lookUp(name)).toEqual([]);
        expect(await databases()).not.toContain(branch.database_name);
        expect(await roles(branch.id)).toEqual([]);
      });
      expect(await countOpen(sessions)).toBe(0);
    }

    test('while the host is away takes effect on its return', async () => {
      const branch = await api.branch(project.id, 'leased-host', { lease_seconds: 60 });
      const sessions = await openSessions('leased-host');
      await stack.kill('agent');
      setEnd(branch.id, Date.now() - 1, 'lease_ends_at');
      await stack.start('agent');
      await stack.untilReady();
      await expectGone(branch, 'leased-host', sessions);
    });

    test.runIf(IS_NIGHTLY)('while the gateway is away takes effect on its return', async () => {
      const branch = await api.branch(project.id, 'leased-gateway', { lease_seconds: 60 });
      const sessions = await openSessions('leased-gateway');
      await stack.kill('gateway');
      setEnd(branch.id, Date.now() - 1, 'lease_ends_at');
      await stack.start('gateway');
      await stack.untilReady();
      await expectGone(branch, 'leased-gateway', sessions);
    });
  });
});
