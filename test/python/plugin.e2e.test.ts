import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, inject, test } from 'vitest';
import type { Api, ProjectBody } from '../support/api.ts';
import { query } from '../support/database.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { HAS_PYTEST, runPytest } from '../support/pytest.ts';
import { temporaryFolder } from '../support/stack/stack.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

const TESTS = `
import subprocess

def rows(url):
    command = ["psql", url, "-Atc", "insert into item values (1) returning (select count(*) from item)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]

def test_session(branch):
    assert rows(branch.verified(branch.direct_url)) == "1"
    assert branch.name.startswith("pytest-")
    assert "postgresql" not in repr(branch)

def test_module(branch, module_branch):
    assert module_branch.name != branch.name
    assert rows(module_branch.verified(module_branch.database_url)) == "1"
    assert rows(module_branch.verified(module_branch.database_url)) == "2"

def test_snapshot(branch, branchgate_snapshot, module_branch):
    assert branchgate_snapshot is not None
    assert rows(branch.verified(branch.direct_url)) == "2"
`;

describe.runIf(HAS_PYTEST)('the pytest plugin', () => {
  const folder = temporaryFolder();
  let api: Api;
  let project: ProjectBody;
  let env: Record<string, string>;

  const pytest = (more: Record<string, string> = {}, ...options: string[]) =>
    runPytest(folder, { ...env, ...more }, ...options);

  beforeAll(async () => {
    api = await ownerOf('pytest');
    project = await api.project('Pytest');
    await api.allow(project.id);
    const { direct_url } = await api.credentials(project.id, 'main');
    await query(direct_url, 'create table item (n int); insert into item values (0)');
    writeFileSync(join(folder, 'test_item.py'), TESTS);
    env = {
      BRANCHGATE_URL: inject('stack').url,
      BRANCHGATE_TOKEN: await tokenOf({ tenant: 'pytest' }),
      BRANCHGATE_PROJECT: project.id,
    };
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  test('gives a session and each module a branch, and deletes them', async () => {
    expect((await pytest()).stdout).toContain('3 passed');
    const { body } = await api.get<{ branches: unknown[] }>(`/api/v1/projects/${project.id}/branches`);
    expect(body.branches).toHaveLength(1);
    expect((await api.get(`/api/v1/projects/${project.id}/snapshots`)).body.snapshots).toEqual([]);
  });

  test.runIf(IS_NIGHTLY)('gives branches the wanted data', async () => {
    const empty = pytest({}, '-o', 'branchgate_data=none', '-k', 'test_session');
    // The row of main is not there.
    await expect(empty).rejects.toMatchObject({ stdout: expect.stringContaining("assert '0' == '1'") });
    const masked = () => pytest({}, '-o', 'branchgate_data=masked', '-k', 'test_session');
    await expect(masked()).rejects.toMatchObject({
      stdout: expect.stringContaining('The project has no masking policy'),
    });
    const rules = [{ table: 'item', column: 'n', with: 'constant', args: { value: '1' } }];
    const policy = { rules, unlisted: 'keep' };
    await api.call('PUT', `/api/v1/projects/${project.id}/masking`, { body: policy });
    expect((await masked()).stdout).toContain('1 passed');
  });

  test.runIf(IS_NIGHTLY)('fails without its settings, and names the missing one', async () => {
    await expect(pytest({ BRANCHGATE_PROJECT: '' })).rejects.toMatchObject({
      stdout: expect.stringContaining('BRANCHGATE_PROJECT is missing'),
    });
  });
});
