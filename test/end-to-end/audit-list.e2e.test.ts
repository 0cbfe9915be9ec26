import { beforeAll, describe, expect, inject, test } from 'vitest';
import { Api } from '../support/api.ts';
import { apiOf, ownerOf, readD1, tenantNamed } from '../support/tenants.ts';

interface Event {
  id: string;
  name: string;
  tenant_id: string;
  actor_type: string;
  actor_id: string;
  project_id: string;
  created_at: string;
}

interface Page {
  audit_events: Event[];
  next_cursor: string | null;
}

const PATH = '/api/v1/audit-events';
const RENAMES = 4;

let owner: Api;
let projectId: string;
let otherId: string;

/** Changing two fields creates two events with the same timestamp. */
async function renameAgain(id: string): Promise<void> {
  for (let n = 1; n <= RENAMES; n += 1) {
    const { status } = await owner.patch(`/api/v1/projects/${id}`, {
      name: `Name ${n}`,
      storage_quota_gib: n,
    });
    expect(status).toBe(200);
  }
}

beforeAll(async () => {
  owner = await ownerOf('logged');
  projectId = (await owner.project('Logged', { storage_quota_gib: 5 })).id;
  otherId = (await owner.project('Logged too', { storage_quota_gib: 5 })).id;
  await renameAgain(projectId);
  await (await ownerOf('logged-elsewhere')).project('Elsewhere');
});

/** Ids of the recorded events, newest first. */
const recorded = () =>
  readD1<{ id: string; created_at: number }>(
    'select id, created_at from audit_events where tenant_id = ? order by created_at desc, id desc',
    tenantNamed('logged'),
  );

async function pagesOf(api: Api, query: string): Promise<Event[][]> {
  const pages: Event[][] = [];
  let cursor: string | null = '';
  while (cursor !== null) {
    const { status, body }: { status: number; body: Page } = await api.get<Page>(
      `${PATH}?${query}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`,
    );
    expect(status).toBe(200);
    pages.push(body.audit_events);
    cursor = body.next_cursor;
  }
  return pages;
}

describe('the list of audit events', () => {
  test.each([1, 2, 3])('returns each event once, newest first, in pages of %i', async (limit) => {
    const rows = recorded();
    const timestamps = rows.map(({ created_at }) => created_at);
    expect(new Set(timestamps).size).toBeLessThanOrEqual(rows.length - RENAMES);
    const pages = await pagesOf(owner, `limit=${limit}`);
    expect(pages.flat().map(({ id }) => id)).toEqual(rows.map(({ id }) => id));
    expect(pages.slice(0, -1).map(({ length }) => length)).toEqual(pages.slice(1).map(() => limit));
  });

  test('continues at the cursor when new events are added meanwhile', async () => {
    const rows = recorded();
    const { body } = await owner.get<Page>(`${PATH}?limit=3`);
    await owner.patch(`/api/v1/projects/${otherId}`, { name: 'Meanwhile' });
    const rest = await owner.get<Page>(
      `${PATH}?limit=100&cursor=${encodeURIComponent(body.next_cursor ?? '')}`,
    );
    expect([...body.audit_events, ...rest.body.audit_events].map(({ id }) => id)).toEqual(
      rows.map(({ id }) => id),
    );
  });

  test('is filtered by project, by name, and by both', async () => {
    const [all, ofProject, ofName, ofBoth] = await Promise.all(
      [
        '',
        `&project_id=${projectId}`,
        '&name=project.created',
        `&project_id=${otherId}&name=project.created`,
      ].map(async (filter) => (await pagesOf(owner, `limit=2${filter}`)).flat()),
    );
    expect(all?.every(({ tenant_id }) => tenant_id === tenantNamed('logged'))).toBe(true);
    expect(ofProject).toEqual(all?.filter(({ project_id }) => project_id === projectId));
    expect(ofProject).toHaveLength(1 + 2 * RENAMES);
    expect(ofName).toEqual(all?.filter(({ name }) => name === 'project.created'));
    expect(ofName).toHaveLength(2);
    expect(ofBoth?.map(({ project_id }) => project_id)).toEqual([otherId]);
  });

  test('is filtered by the type and the ID of the actor, on every page', async () => {
    const { status, body: key } = await owner.post<{ id: string; key: string }>('/api/v1/api-keys', {
      name: 'CI',
      role: 'admin',
      scopes: ['branchgate:write'],
      expires_in_days: 1,
    });
    expect(status).toBe(201);
    await new Api(inject('stack').url, key.key).patch(`/api/v1/projects/${otherId}`, { name: 'By a key' });
    const [all, ofUsers, ofKeys, ofKey, ofWorkloads] = await Promise.all(
      ['', '&actor_type=user', '&actor_type=key', `&actor_id=${key.id}`, '&actor_type=workload'].map(
        async (filter) => (await pagesOf(owner, `limit=2${filter}`)).flat(),
      ),
    );
    expect(ofUsers).toEqual(all?.filter(({ actor_type }) => actor_type === 'user'));
    expect(ofUsers?.length).toBeGreaterThan(2);
    expect(ofKeys?.map(({ name, actor_id }) => [name, actor_id])).toEqual([['project.renamed', key.id]]);
    expect(ofKey).toEqual(ofKeys);
    expect(ofWorkloads).toEqual([]);
  });

  test.each([
    'actor_type=robot',
    'actor_id=',
    'name=project.painted',
    'name=',
    'project_id=none',
    'limit=0',
    'limit=101',
    'cursor=none',
    'cursor=WzEsMl0=',
    'colour=red',
  ])('%s → 422', async (query) => {
    expect(await owner.get(`${PATH}?${query}`)).toMatchObject({
      status: 422,
      body: { error: 'VALIDATION_FAILED', details: [{ path: query.split('=')[0] }] },
    });
  });

  test('is for owners and admins', async () => {
    const statuses = ['owner', 'admin', 'operator', 'viewer', 'guest'].map(async (role) => {
      const api = await apiOf({ tenant: 'logged', role });
      return [role, (await api.get(PATH)).status];
    });
    expect(Object.fromEntries(await Promise.all(statuses))).toEqual({
      owner: 200,
      admin: 200,
      operator: 403,
      viewer: 403,
      guest: 403,
    });
  });

  test("never contains another tenant's events, neither by project id nor by cursor", async () => {
    const otherOwner = await ownerOf('logged-elsewhere');
    const own = (await pagesOf(otherOwner, 'limit=100')).flat();
    expect(own.map(({ name }) => name)).toEqual(['project.created']);
    expect((await pagesOf(otherOwner, `project_id=${projectId}`)).flat()).toEqual([]);
    const { body } = await owner.get<Page>(`${PATH}?limit=1`);
    const after = await otherOwner.get<Page>(`${PATH}?cursor=${encodeURIComponent(body.next_cursor ?? '')}`);
    expect(own).toEqual(expect.arrayContaining(after.body.audit_events));
  });
});
