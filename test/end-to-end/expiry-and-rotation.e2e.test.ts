import { globSync } from 'node:fs';
import { join } from 'node:path';
import { DatabaseSync } from 'node:sqlite';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { devFolder } from '../../dev/stack/dev-folder.ts';
import { Api, type Credentials, FROM_LOOPBACK, type ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/**
 * Expiry, rotation and removed rules all reach the host as one revision of the project's access
 * (specification 3.1, 4.3).
 */

let stack: Stack;
let api: Api;
let project: ProjectBody;
const clients: pg.Client[] = [];

beforeAll(async () => {
  stack = await startStack({ restarts: false });
  api = new Api(stack.url, await stack.token());
  project = await api.project('Access');
});
afterAll(async () => {
  await Promise.all(clients.map((client) => client.end().catch(() => {})));
  await stack.stop();
});

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

/** Sets the end of a life or a lease in the record, so that the test needs not wait for it. */
function setEnd(branchId: string, endsAt: number, column = 'expires_at'): void {
  const [file = ''] = globSync(join(devFolder(stack.devDir).gatewayState, '**/d1/**/*.sqlite'));
  const d1 = new DatabaseSync(file, { timeout: 5000 });
  try {
    d1.prepare(`update project_branches set ${column} = ? where id = ?`).run(endsAt, branchId);
  } finally {
    d1.close();
  }
}

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
  const [sessions, neighbours] = [await openSessions('unruled'), await openSessions('ruled')];
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

  test('happens once under one key, and five times an hour per branch', async () => {
    const branch = await api.branch(project.id, 'often-rotated');
    const [first, again] = [await rotate(branch.id, 'once'), await rotate(branch.id, 'once')];
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
  const databases = async () => (await stack.agentTool('--json', 'host', 'inventory')).stdout;

  async function expectGone(branch: { id: string }, name: string, sessions: pg.Client[]) {
    await eventually(async () => {
      expect(await lookUp(name)).toEqual([]);
      expect(await databases()).not.toContain(branch.id);
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
