import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, describe, expect, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { connect, query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

let api: Api;
let project: ProjectBody;
const path = () => `/api/v1/projects/${project.id}/network-rules`;
const refused = { code: expect.stringMatching(/^(28000|08P01)$/) };

beforeAll(async () => {
  api = await ownerOf('rules');
  project = await api.project('Rules');
});

async function bothPorts(branch: string): Promise<string[]> {
  const { database_url, direct_url } = await api.credentials(project.id, branch);
  return [database_url, direct_url];
}

describe('network rules', () => {
  test('a new project admits no client; adding or removing a rule takes effect immediately on both ports', async () => {
    const urls = await bothPorts('main');
    for (const url of urls) await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    const rule = await api.allow(project.id);
    expect(rule).toMatchObject({
      status: 'applied',
      branch_id: null,
      cidr: '127.0.0.1/32',
      source: 'manual',
    });
    for (const url of urls) expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
    expect((await api.delete(`${path()}/${rule.id}`)).status).toBe(204);
    for (const url of urls) await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    expect((await api.delete(`${path()}/${rule.id}`)).status).toBe(404);
  });

  test('a rule for SQL over HTTP opens no port until it is changed, and closes the ports when it is changed back', async () => {
    const urls = await bothPorts('main');
    const { body: rule } = await api.post<{ id: string }>(path(), { cidr: '127.0.0.1', via: 'sql' });
    expect(rule).toMatchObject({ via: 'sql', status: 'applied' });
    for (const url of urls) await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    const { body: credentials } = await api.get<{ missing_networks?: string[] }>(
      `/api/v1/projects/${project.id}/branches/main/credentials`,
    );
    expect(credentials.missing_networks).toEqual(['127.0.0.1/32']);
    expect(await api.post(path(), { cidr: '127.0.0.1' })).toMatchObject({
      status: 409,
      body: { error: 'RULE_EXISTS', rule_id: rule.id, via: 'sql' },
    });
    const change = (via: string) => api.patch(`${path()}/${rule.id}`, { via });
    expect(await change('all')).toMatchObject({ status: 200, body: { via: 'all', status: 'applied' } });
    const open = await connect(urls[1] ?? '');
    const ended = new Promise((resolve) => open.once('error', resolve));
    for (const url of urls) expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
    expect(await change('sql')).toMatchObject({ status: 200, body: { via: 'sql', status: 'applied' } });
    expect(await ended).toMatchObject({ code: '57P01' });
    for (const url of urls) await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    expect(await api.patch(`${path()}/${rule.id}`, {})).toMatchObject({ status: 422 });
    expect((await api.delete(`${path()}/${rule.id}`)).status).toBe(204);
  });

  test('a rule can end by itself, later or sooner', async () => {
    const { body: rule } = await api.post<{ id: string; expires_at: string }>(path(), {
      cidr: '198.51.100.7',
      ttl_seconds: 3600,
    });
    const left = (at: string) => Math.round((Date.parse(at) - Date.now()) / 1000);
    expect(left(rule.expires_at)).toBeGreaterThan(3000);
    const changed = await api.patch<{ expires_at: string }>(`${path()}/${rule.id}`, { ttl_seconds: 60 });
    expect(changed).toMatchObject({ status: 200, body: { id: rule.id, status: 'applied' } });
    expect(left(changed.body.expires_at)).toBeLessThan(61);
    for (const ttl_seconds of [59, 31_536_001, '60'])
      expect(await api.patch(`${path()}/${rule.id}`, { ttl_seconds })).toMatchObject({ status: 422 });
    const stays = await api.patch(`${path()}/${rule.id}`, { ttl_seconds: null });
    expect(stays.body).toMatchObject({ expires_at: null });
    expect((await api.delete(`${path()}/${rule.id}`)).status).toBe(204);
    expect((await api.patch(`${path()}/${rule.id}`, { ttl_seconds: 60 })).status).toBe(404);
  });

  test.runIf(IS_NIGHTLY)('a rule that has ended lets nobody connect', async () => {
    await api.post(path(), { cidr: '127.0.0.1', ttl_seconds: 60 });
    const urls = await bothPorts('main');
    for (const url of urls) expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
    // Without connections meanwhile: many attempts would be refused for another reason.
    await sleep(60_000);
    await eventually(async () => {
      const { body } = await api.get<{ network_rules: unknown[] }>(path());
      expect(body.network_rules.filter((rule) => (rule as { cidr: string }).cidr === '127.0.0.1/32')).toEqual(
        [],
      );
    });
    for (const url of urls) await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    const { body } = await api.get<{ audit_events: unknown[] }>(
      '/api/v1/audit-events?name=network_rule.expired',
    );
    expect(body.audit_events).toHaveLength(1);
  });

  test("the creator's address is a rule of that branch only", async () => {
    const branch = await api.branch(project.id, 'mine');
    for (const url of await bothPorts('mine'))
      expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
    for (const url of await bothPorts('main'))
      await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
    const { body } = await api.get<{ network_rules: Record<string, unknown>[] }>(
      `${path()}?branch_id=${branch.id}`,
    );
    expect(body.network_rules).toEqual([
      expect.objectContaining({
        branch_id: branch.id,
        cidr: '127.0.0.1/32',
        source: 'creator_ip',
        status: 'applied',
      }),
    ]);
  });

  test('`me` is the address of the request, and is refused if that is not known', async () => {
    await api.branch(project.id, 'own');
    const { body } = await api.get<{ matches: { id: string }[] }>(
      `/api/v1/projects/${project.id}/branches/lookup?name=own`,
    );
    const rule = { cidr: 'me', branch_id: body.matches[0]?.id };
    const from = (address: string) => api.post(path(), rule, { 'CF-Connecting-IP': address });
    expect(await from('203.0.113.77')).toMatchObject({ status: 201, body: { cidr: '203.0.113.77/32' } });
    expect(await from('2a06:98c0:3600::103')).toMatchObject({
      status: 422,
      body: { details: [{ path: 'cidr' }] },
    });
  });

  test('the address that all Workers share gets no rule', async () => {
    const branch = await api.post<{ id: string }>(
      `/api/v1/projects/${project.id}/branches`,
      { branch_name: 'from-a-worker' },
      { 'CF-Connecting-IP': '2a06:98c0:3600::103' },
    );
    expect(branch.status).toBe(201);
    const { body } = await api.get<{ network_rules: unknown[] }>(`${path()}?branch_id=${branch.body.id}`);
    expect(body.network_rules).toEqual([]);
  });

  test('a rule for another network does not admit this client', async () => {
    await api.branch(project.id, 'elsewhere');
    const { body } = await api.get<{ matches: { id: string }[] }>(
      `/api/v1/projects/${project.id}/branches/lookup?name=elsewhere`,
    );
    const branchId = body.matches[0]?.id ?? '';
    const rules = await api.get<{ network_rules: { id: string }[] }>(`${path()}?branch_id=${branchId}`);
    await api.delete(`${path()}/${rules.body.network_rules[0]?.id}`);
    await api.allow(project.id, '203.0.113.0/24', branchId);
    for (const url of await bothPorts('elsewhere'))
      await expect(query(url, 'select 1')).rejects.toMatchObject(refused);
  });

  test('networks are normalized, and host bits are refused with the correct network', async () => {
    const made = await api.allow(project.id, '::ffff:198.51.100.0/120');
    expect(made).toMatchObject({ cidr: '198.51.100.0/24' });
    const twice = await api.post(path(), { cidr: '198.51.100.0/24' });
    expect(twice).toMatchObject({ status: 409, body: { error: 'RULE_EXISTS', rule_id: made.id } });
    const hostBits = await api.post(path(), { cidr: '198.51.100.9/24' });
    expect(hostBits.status).toBe(422);
    expect(JSON.stringify(hostBits.body.details)).toContain('198.51.100.0/24');
    const unknown = await api.post(path(), {
      cidr: '198.51.100.9',
      branch_id: '00000000-0000-4000-8000-000000000000',
    });
    expect(unknown.status).toBe(404);
  });

  test.runIf(IS_NIGHTLY)('concurrent changes all take effect', async () => {
    const networks = Array.from({ length: 20 }, (_, n) => `10.0.${n}.0/24`);
    const made = await Promise.all([
      ...networks.map((cidr) => api.allow(project.id, cidr)),
      api.allow(project.id),
    ]);
    expect(made.map(({ status }) => status)).toEqual(Array(21).fill('applied'));
    for (const url of await bothPorts('main'))
      expect(await query(url, 'select 1 as one')).toEqual([{ one: 1 }]);
    const responses = await Promise.all(made.map(({ id }) => api.delete(`${path()}/${id}`)));
    expect(responses.map(({ status }) => status)).toEqual(Array(21).fill(204));
    for (const url of await bothPorts('main')) {
      // Fewer attempts than an address may make in a minute.
      await eventually(() => expect(query(url, 'select 1')).rejects.toMatchObject(refused), 4);
    }
  });
});
