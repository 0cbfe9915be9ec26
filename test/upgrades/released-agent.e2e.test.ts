import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { purgeBranch } from '../support/records/jobs.ts';
import { hasRelease, releasedAgent } from '../support/released.ts';
import { type Stack, startStack } from '../support/stack/stack.ts';

/** The gateway was upgraded, and the agent of its host was not yet (docs/decisions/releases.md). */
describe.runIf(IS_NIGHTLY && hasRelease())('with an agent of the last release', () => {
  let stack: Stack;
  let api: Api;
  let project: ProjectBody;
  let path: string;

  beforeAll(async () => {
    stack = await startStack({ agent: releasedAgent });
    api = new Api(stack.url, await stack.token());
    project = await api.project('Older');
    path = `/api/v1/projects/${project.id}`;
    await api.allow(project.id);
  });
  afterAll(() => stack?.stop());

  test('a branch is made, used, edited and purged', async () => {
    const main = await api.credentials(project.id, 'main');
    await query(
      main.direct_url,
      "create table book (id int primary key, title text); insert into book values (7, 'Seven')",
    );
    const branch = await api.branch(project.id, 'made');
    const { database_url, direct_url } = await api.credentials(project.id, 'made');
    for (const url of [database_url, direct_url])
      expect(await query(url, 'select title from book')).toEqual([{ title: 'Seven' }]);
    const tables = `${path}/branches/made/tables`;
    expect((await api.get(tables)).body).toMatchObject({ tables: [{ name: 'book' }] });
    expect((await api.get(`${tables}/book/rows`)).body).toMatchObject({ rows: [{ title: 'Seven' }] });
    const rotated = await api.post(`${path}/branches/made/credentials/rotate`, {});
    expect(rotated.status).toBe(200);
    await expect(query(direct_url, 'select 1')).rejects.toMatchObject({ code: '28P01' });
    await purgeBranch(api, project.id, branch.id);
    const { body } = await api.get<{ branches: unknown[] }>(`${path}/branches`);
    expect(body.branches).toHaveLength(1);
  });
});
