import { describe, expect, test } from 'vitest';
import { ownerOf, readD1, tenantNamed } from '../support/tenants.ts';

interface AuditRow {
  name: string;
  actor_email: string;
  project_id: string;
  branch_id: string | null;
  request_id: string;
  ip: string | null;
  metadata: string;
}

const audited = (tenant: string) =>
  readD1<AuditRow>(
    'select * from audit_events where tenant_id = ? order by created_at, rowid',
    tenantNamed(tenant),
  );

describe('audit events', () => {
  test('are written once per action, with actor and request ID', async () => {
    const api = await ownerOf('audited');
    const project = await api.project('Audited');
    const branch = await api.branch(project.id, 'audited-branch');
    await api.credentials(project.id, branch.id);
    await api.credentials(project.id, 'audited-branch', '?role=read_only');
    await api.patch(`/api/v1/projects/${project.id}/branches/${branch.id}`, { lifespan: '1y' });
    await api.patch(`/api/v1/projects/${project.id}`, { name: 'Renamed' });
    const rule = await api.allow(project.id, '203.0.113.0/24');
    await api.delete(`/api/v1/projects/${project.id}/network-rules/${rule.id}`);
    await api.delete(`/api/v1/projects/${project.id}/branches/${branch.id}`);
    await api.delete(`/api/v1/projects/${project.id}`);
    const rows = audited('audited');
    expect(rows.map(({ name }) => name)).toEqual([
      'project.created',
      'branch.created',
      'branch.credentials.viewed',
      'branch.credentials.viewed',
      'branch.lifespan.changed',
      'project.renamed',
      'network_rule.created',
      'network_rule.deleted',
      'branch.deleted',
      'project.deleted',
    ]);
    for (const row of rows) {
      expect(row.actor_email).toMatch(/^owner@/);
      expect(row.project_id).toBe(project.id);
      expect(row.request_id).toMatch(/^[0-9a-f-]{36}$/);
    }
    expect(new Set(rows.map(({ request_id }) => request_id)).size).toBe(10);
    expect(rows[1]).toMatchObject({ branch_id: branch.id, ip: '127.0.0.1' });
    expect(rows.slice(2, 4).map(({ metadata }) => JSON.parse(metadata))).toEqual([
      { role: 'default' },
      { role: 'read_only' },
    ]);
  });

  test('are not written for refused actions and contain no password', async () => {
    const api = await ownerOf('unaudited');
    const project = await api.project('Unaudited');
    await api.post(`/api/v1/projects/${project.id}/branches`, { branch_name: 'main' });
    await api.delete(`/api/v1/projects/${project.id}/branches/${project.main_branch.id}`);
    const { direct_url } = await api.credentials(project.id, 'main');
    const rows = audited('unaudited');
    expect(rows.map(({ name }) => name)).toEqual(['project.created', 'branch.credentials.viewed']);
    expect(JSON.stringify(rows)).not.toContain(new URL(direct_url).password);
  });
});
