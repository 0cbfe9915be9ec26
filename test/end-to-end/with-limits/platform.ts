import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import { devFolder, gatewaySecrets } from '../../../dev/stack/dev-folder.ts';
import { Api, type ProjectBody } from '../../support/api.ts';
import { eventually } from '../../support/eventually.ts';
import { senderTo } from '../../support/send.ts';
import type { Stack } from '../../support/stack/stack.ts';

interface Host {
  free_bytes: number | null;
  description: object | null;
  id: string;
  name: string;
  linked: boolean;
  draining: boolean;
}

const HOSTS = '/platform/v1/hosts';
const UNKNOWN = '00000000-0000-4000-8000-000000000000';
const OTHER_HOST = { name: 'other', db_host: 'other.example.com', direct_port: 5432, pooled_port: 6432 };
const FROM_ELSEWHERE = { 'CF-Connecting-IP': '198.51.100.1' };

/** What only the platform may do. A draining host accepts no projects of other tests. */
export function describePlatform(running: () => Stack, metricsPort: () => number): void {
  let stack: Stack;
  let platform: Api;
  let owner: Api;

  beforeAll(async () => {
    stack = running();
    platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
    owner = new Api(stack.url, await stack.token());
  });

  const hosts = async () => (await platform.get<{ hosts: Host[] }>(HOSTS)).body.hosts;
  describe('hosts', () => {
    test('are listed with their state, page by page', async () => {
      // The free disk is known after the first reconciliation.
      const local = await eventually(async () => {
        const [first] = await hosts();
        expect(first?.free_bytes).toBeGreaterThan(2 ** 20);
        expect(first?.description).not.toBeNull();
        return first;
      });
      expect(local).toEqual({
        id: expect.any(String),
        name: 'local',
        db_host: '127.0.0.1',
        direct_port: stack.state.direct_port,
        pooled_port: stack.state.pooled_port,
        ca_certificate: stack.state.ca_certificate,
        linked: true,
        draining: false,
        region: null,
        capacity: null,
        available_version: null,
        members: [{ host_id: local?.id, role: 'primary', lag_bytes: null, lag_seconds: null, sync: null }],
        project_count: 0,
        free_bytes: expect.any(Number),
        description: {
          described_at: expect.any(String),
          agent_version: expect.stringMatching(/^\d+\.\d+\.\d+$/),
          postgres_version: expect.stringMatching(/^18\./),
          pooler_version: expect.stringMatching(/^1\./),
          clone_method: expect.stringMatching(/^(reflink|copy)$/),
          disk_bytes: expect.any(Number),
          largest_source: expect.toBeOneOf([null, expect.any(Object)]),
          project_extensions: [],
          spares: expect.any(Number),
          last_backup_at: null,
          last_archived_at: null,
          certificate_names: ['localhost', '*.db.localhost'],
          warnings: expect.arrayContaining([expect.stringContaining('A lost disk takes all databases')]),
        },
        enrolled_at: expect.any(String),
        created_at: expect.any(String),
      });
      const registered = await platform.post<{ host_id: string; enrolment_token: string }>(HOSTS, OTHER_HOST);
      expect(registered).toMatchObject({ status: 201, body: { name: 'other' } });
      expect(registered.headers.get('cache-control')).toBe('no-store');
      expect(await hosts()).toEqual([
        local,
        expect.objectContaining({
          id: registered.body.host_id,
          linked: false,
          draining: false,
          enrolled_at: null,
        }),
      ]);
      const page = await platform.get<{ hosts: Host[]; next_cursor: string }>(`${HOSTS}?limit=1`);
      expect(page.body.hosts.map(({ name }) => name)).toEqual(['local']);
      const next = await platform.get<{ hosts: Host[]; next_cursor: null }>(
        `${HOSTS}?limit=1&cursor=${page.body.next_cursor}`,
      );
      expect([next.body.hosts.map(({ name }) => name), next.body.next_cursor]).toEqual([['other'], null]);
    });

    test('get another token when registered again before they are enrolled; the names of enrolled ones are taken', async () => {
      const first = await platform.post(HOSTS, OTHER_HOST);
      const again = await platform.post(HOSTS, { ...OTHER_HOST, pooled_port: 7432 });
      expect(again.body.host_id).toBe(first.body.host_id);
      expect(again.body.enrolment_token).not.toBe(first.body.enrolment_token);
      expect(await platform.post(HOSTS, { ...OTHER_HOST, name: 'local' })).toMatchObject({
        status: 409,
        body: { error: 'HOST_EXISTS' },
      });
    });

    test('that drain accept no new project and serve existing ones', async () => {
      const before = await owner.project('Before the drain');
      const [local] = await hosts();
      const path = `${HOSTS}/${local?.id}`;
      expect(await platform.patch(path, { draining: true })).toMatchObject({
        status: 200,
        body: { name: 'local', draining: true, linked: true },
      });
      expect(await owner.post('/api/v1/projects', { name: 'Refused' })).toMatchObject({
        status: 503,
        body: { error: 'HOST_UNAVAILABLE' },
      });
      expect((await owner.branch(before.id, 'meanwhile')).status).toBe('active');
      expect(await platform.call('DELETE', path)).toMatchObject({
        status: 409,
        body: { error: 'HOST_NOT_EMPTY', projects: 1 },
      });
      expect((await owner.credentials(before.id, 'meanwhile')).database).toContain('meanwhile');
      expect(await platform.patch(path, { draining: false })).toMatchObject({ body: { draining: false } });
      await owner.project('After the drain');
      const { body } = await owner.get<{ projects: ProjectBody[] }>('/api/v1/projects');
      expect(body.projects.map(({ name }) => name)).toEqual(['Before the drain', 'After the drain']);
    });

    test('that are renamed give their tenants the new URL', async () => {
      const project = await owner.project('Renamed host');
      const [local] = await hosts();
      const rename = (db_host: string) => platform.patch(`${HOSTS}/${local?.id}`, { db_host });
      const { database_url } = await owner.credentials(project.id, 'main');
      expect(await rename('localhost')).toMatchObject({ status: 200, body: { db_host: 'localhost' } });
      const renamed = await owner.credentials(project.id, 'main');
      expect(renamed.database_url).toBe(database_url.replace('127.0.0.1', 'localhost'));
      await rename('127.0.0.1');
    });

    test.each([
      ['GET', HOSTS, '?colour=red', undefined, 422],
      ['POST', HOSTS, '', { ...OTHER_HOST, colour: 'red' }, 422],
      ['POST', HOSTS, '', { ...OTHER_HOST, name: 'Not a name' }, 422],
      ['POST', HOSTS, '', { ...OTHER_HOST, db_host: 'not a host' }, 422],
      ['POST', HOSTS, '', { ...OTHER_HOST, direct_port: 65_536 }, 422],
      ['PATCH', `${HOSTS}/${UNKNOWN}`, '', {}, 422],
      ['PATCH', `${HOSTS}/${UNKNOWN}`, '', { draining: true }, 404],
      ['PATCH', `${HOSTS}/local`, '', { draining: true }, 404],
    ])('%s %s%s %j is refused', async (method, path, query, body, status) => {
      const response = await platform.call(method, path + query, body ? { body } : {});
      expect(response.status).toBe(status);
    });
  });

  describe('the secret', () => {
    test('a wrong one is refused on every route, and counted by address', async () => {
      const wrong = new Api(stack.url, 'x'.repeat(43));
      const requests = [
        ['GET', HOSTS],
        ['POST', HOSTS, OTHER_HOST],
        ['PATCH', `${HOSTS}/${UNKNOWN}`, { draining: true }],
        ['PATCH', `/platform/v1/projects/${UNKNOWN}`, { branch_limit: 20 }],
        ['GET', '/platform/v1/nowhere'],
      ] as const;
      const rests = [];
      for (const [method, path, body] of requests) {
        const response = await wrong.call(method, path, { body, headers: FROM_ELSEWHERE });
        expect(response).toMatchObject({ status: 401, body: { error: 'UNAUTHENTICATED' } });
        rests.push(Number(response.headers.get('x-ratelimit-remaining')));
      }
      expect(rests).toEqual([59, 58, 57, 56, 55]);
      expect((await owner.get(HOSTS, { headers: FROM_ELSEWHERE })).status).toBe(401);
    });

    test('grants no access to tenants', async () => {
      expect((await platform.get('/api/v1/projects')).status).toBe(401);
    });
  });

  test('a creation is in the metrics of the agent, and its trace in the log of the agent', async () => {
    const trace = '4bf92f3577b34da6a3ce929d0e0e4736';
    const { status } = await owner.post(
      '/api/v1/projects',
      { name: 'Traced' },
      {
        traceparent: `00-${trace}-00f067aa0ba902b7-01`,
      },
    );
    expect(status).toBe(201);
    // The agent writes a line after its reply.
    await eventually(async () => {
      const log = readFileSync(join(stack.devDir, 'logs/agent.log'), 'utf8');
      const lines = log.split('\n').flatMap((line) => (line.includes(trace) ? [JSON.parse(line)] : []));
      expect(lines.map(({ event, method, outcome }) => [event, method, outcome])).toEqual(
        expect.arrayContaining([
          ['operation.ended', 'branch.clone', 'ok'],
          ['operation.ended', 'branch.prove', 'ok'],
        ]),
      );
    });
    const metrics = await (await fetch(`http://127.0.0.1:${metricsPort()}/metrics`)).text();
    expect(metrics).toMatch(/^branchgate_clone_duration_seconds_count\{method="\w+"\} [1-9]/m);
    expect(metrics).toMatch(/^branchgate_operation_duration_seconds_count\{.*"branch\.clone".*\} [1-9]/m);
    for (const name of [
      'link_up',
      'pooler_memory_bytes',
      'disk_free_bytes\\{.*\\}',
      'log_unread_bytes\\{log="pooler"\\}',
    ])
      expect(metrics).toMatch(new RegExp(`^branchgate_${name} \\d`, 'm'));
  });

  describe('a host that disconnects', () => {
    const anybody = () => senderTo(stack.url, null);
    const health = async () => [(await anybody()('/healthz')).status, (await anybody()('/readyz')).status];
    const inventories = () =>
      readFileSync(join(stack.devDir, 'logs/agent.log'), 'utf8').match(/"inventory\.(?:digest|list)"/g) ?? [];
    let before: number;

    test('makes the whole service unready, and not the gateway alone', async () => {
      expect(await health()).toEqual([200, 200]);
      await stack.kill('agent');
      before = inventories().length;
      await eventually(async () => expect(await health()).toEqual([200, 503]));
      const { headers, text } = await anybody()('/readyz');
      expect(JSON.parse(text).error).toBe('HOST_UNAVAILABLE');
      expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    });

    test('is ready when it is back, and is asked for its digest only, because it holds what the records say', async () => {
      await stack.start('agent');
      await eventually(async () => expect(await health()).toEqual([200, 200]));
      await eventually(async () => expect(inventories().length).toBeGreaterThan(before));
      // The list would follow immediately.
      await sleep(500);
      expect(inventories().slice(before)).toEqual(['"inventory.digest"']);
    });
  });
}
