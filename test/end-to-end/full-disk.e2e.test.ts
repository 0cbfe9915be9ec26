import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { Api, type ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { SmallDisk } from '../support/stack/small-disk.ts';
import { type Stack, startStack, UNMEASURED } from '../support/stack/stack.ts';
import { xfsHindrance } from '../support/stack/xfs.ts';

const hindrance = xfsHindrance();
/** Less than `MIN_FREE_DISK_MB`, and enough for PostgreSQL to run. */
const LEFT_BYTES = 12 * 2 ** 20;
/** Without being asked, the gateway reads the inventory every 300 s. */
const KNOWN_WITHIN_S = 60;

describe.runIf(IS_NIGHTLY && hindrance === null)(`a full disk${hindrance ? ` (${hindrance})` : ''}`, () => {
  let disk: SmallDisk | null;
  let stack: Stack;
  let api: Api;
  let project: ProjectBody;

  beforeAll(async () => {
    disk = SmallDisk.mount();
    if (!disk) return;
    const env = { ...UNMEASURED, PGDATA_DIR: disk.folder, MIN_FREE_DISK_MB: '16' };
    stack = await startStack({ restarts: false, env });
    api = new Api(stack.url, await stack.token());
    project = await api.project('Full', { storage_quota_gib: 1 });
    await api.allow(project.id);
  });
  afterAll(async () => {
    await stack?.stop();
    disk?.remove();
  });

  const create = () => api.post<{ error?: string }>('/api/v1/projects', { name: 'Second' });
  const deletedBranches = async () => {
    const path = `/api/v1/projects/${project.id}/branches?status=deleted`;
    return (await api.get<{ branches: { branch_name: string }[] }>(path)).body.branches.map(
      ({ branch_name }) => branch_name,
    );
  };

  test('is known within seconds, with the deleted branches that it ended, and so is that it has room again', async ({
    skip,
  }) => {
    skip(disk === null, 'no XFS could be mounted');
    const branch = await api.branch(project.id, 'deleted');
    const { direct_url } = await api.credentials(project.id, branch.id);
    await query(direct_url, "create table filler as select repeat('x', 980) from generate_series(1, 20000)");
    expect((await api.delete(`/api/v1/projects/${project.id}/branches/${branch.id}`)).status).toBe(202);
    await eventually(async () => expect(await deletedBranches()).toEqual(['deleted']));

    await eventually(async () => {
      // Each time, because XFS finds room that it had reserved for growing files.
      disk?.fill(LEFT_BYTES);
      expect(await deletedBranches()).toEqual([]);
      expect(await create()).toMatchObject({ status: 503, body: { error: 'HOST_FULL' } });
    }, KNOWN_WITHIN_S);
    disk?.empty();
    await eventually(async () => expect((await create()).status).toBe(201), KNOWN_WITHIN_S);
  });
});
