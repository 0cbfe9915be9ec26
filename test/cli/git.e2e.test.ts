import { execFileSync, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { type Api, type BranchBody, FROM_LOOPBACK } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

const { url } = inject('stack');
const FILE = '.env.branchgate';
/** A hook that was there before, with bytes that are no text. */
const FORMER = Buffer.from('#!/bin/sh\n# \xff\necho former "$3" >> ran\nexit 0', 'latin1');

let api: Api;
let project: string;
let cli: CommandLine;
let repository: string;

const run = (words: string[], cwd = repository, env: Record<string, string> = {}) => {
  const [program = '', ...args] = words;
  const { status, stdout, stderr } = spawnSync(program, args, {
    cwd,
    encoding: 'utf8',
    env: { ...cli.environment, GIT_CONFIG_NOSYSTEM: '1', ...env },
  });
  return { code: status, stdout, stderr };
};
const git = (...args: string[]) => run(['git', ...args]);
const branchgate = (...args: string[]) => run([...cli.words, ...args]);
const hookOf = (name: string) => join(repository, '.git/hooks', name);
const fileIn = (folder: string) => readFileSync(join(folder, FILE), 'utf8');
/** A branch may take longer than git waits. */
const urlIn = async (folder: string) => {
  await eventually(async () => expect(existsSync(join(folder, FILE))).toBe(true), 60);
  return /^DIRECT_URL="(.+)"$/m.exec(fileIn(folder))?.[1] ?? '';
};
const branches = async () => {
  const { body } = await api.get<{ branches: (BranchBody & { labels: Record<string, string> })[] }>(
    `/api/v1/projects/${project}/branches`,
  );
  return body.branches;
};

beforeAll(async () => {
  api = await ownerOf('worktrees');
  ({ id: project } = await api.project('Worktrees'));
  await api.allow(project);
  const { body } = await api.post<{ key: string }>('/api/v1/api-keys', {
    name: 'laptop',
    role: 'operator',
    scopes: ['branchgate:write'],
    expires_in_days: 1,
    project_id: project,
  });
  cli = await CommandLine.open({ BRANCHGATE_URL: url, BRANCHGATE_API_KEY: body.key });
  repository = join(cli.folder, 'repository');
  mkdirSync(repository);
  const author = ['-c', 'user.name=ada', '-c', 'user.email=ada@example.com'];
  execFileSync('git', ['init', '--quiet', '--initial-branch', 'trunk'], { cwd: repository });
  git('config', 'init.defaultBranch', 'trunk');
  expect(git(...author, 'commit', '--quiet', '--allow-empty', '-m', 'first').code).toBe(0);
  writeFileSync(hookOf('post-checkout'), FORMER);
  chmodSync(hookOf('post-checkout'), 0o755);
  expect(branchgate('git', 'install')).toMatchObject({ code: 0 });
});
afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

test('a worktree gets a branch of its own and a file with its URLs, and the default branch none', async () => {
  const worktree = join(cli.folder, 'worktree');
  const added = git('worktree', 'add', worktree, '-b', 'feature/Straße');
  expect(added).toMatchObject({ code: 0 });
  const direct = await urlIn(worktree);
  const made = (await branches()).find(({ labels }) => labels.git === 'feature/Straße');
  expect(made?.branch_name).toMatch(/^feature-stra-e-[0-9a-f]{8}$/);
  expect(statSync(join(worktree, FILE)).mode & 0o777).toBe(0o600);
  const [{ database } = { database: '' }] = await query<{ database: string }>(
    direct,
    'select current_database() as database',
  );
  expect(database).toContain(made?.branch_name);
  expect(existsSync(join(repository, FILE))).toBe(false);
  // The hook that was there ran, in the new worktree.
  expect(readFileSync(join(worktree, 'ran'), 'utf8')).toBe('former 1\n');
  rmSync(join(worktree, 'ran'));
  expect(run(['git', 'status', '--porcelain'], worktree).stdout).toBe('');
  run(['git', 'checkout', '--quiet', '--detach'], worktree);
  expect(await urlIn(worktree)).toContain(made?.branch_name);
  git('branch', 'main');
  run(['git', 'checkout', '--quiet', 'main'], worktree);
  expect(existsSync(join(worktree, FILE))).toBe(false);
  run(['git', 'checkout', '--quiet', 'feature/Straße'], worktree);
  expect(await urlIn(worktree)).toContain(made?.branch_name);
  expect(run([...cli.words, 'env'], worktree).stdout).toContain('DATABASE_URL="postgresql://');
});

test('a file that git would commit, or that is a link, is not written', () => {
  const refused = (reason: RegExp) =>
    expect(branchgate('env', 'main', '--write')).toMatchObject({
      code: 2,
      stderr: expect.stringMatching(reason),
    });
  symlinkSync('elsewhere', join(repository, FILE));
  refused(/no plain file/);
  rmSync(join(repository, FILE));
  const exclude = join(repository, '.git/info/exclude');
  const ignored = readFileSync(exclude);
  writeFileSync(exclude, '');
  refused(/not ignored/);
  writeFileSync(join(repository, FILE), 'mine');
  git('add', FILE);
  writeFileSync(exclude, ignored);
  refused(/tracked/);
  expect(fileIn(repository)).toBe('mine');
  git('rm', '--quiet', '--force', FILE);
  expect(branchgate('env', 'main', '--write')).toMatchObject({ code: 0 });
  rmSync(join(repository, FILE));
});

test('git does not wait for a gateway that does not answer: the checkout ends while its request is open', async () => {
  const open = new Set<ServerResponse>();
  const silent = createServer((_, response) => {
    open.add(response);
    response.once('close', () => open.delete(response));
  }).listen(0, '127.0.0.1');
  await once(silent, 'listening');
  const { port } = silent.address() as AddressInfo;
  const away = `http://127.0.0.1:${port}`;
  git('config', 'branchgate.url', away);
  const child = spawn('git', ['checkout', '-b', 'slow'], {
    cwd: repository,
    env: { ...cli.environment, GIT_CONFIG_NOSYSTEM: '1', BRANCHGATE_URL: away },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  let stderr = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    stderr += text;
  });
  // Nothing answers, so only the bound of the hook ends it. Its process in the background still waits.
  expect(await once(child, 'exit')).toEqual([0, null]);
  await eventually(async () => expect(open.size).toBe(1));
  expect(stderr).toContain('in the background');
  silent.closeAllConnections();
  silent.close();
  git('config', 'branchgate.url', url);
  git('checkout', '--quiet', 'trunk');
});

test('nothing happens during a rebase, and a link to another project is said and not followed', async () => {
  const names = async () => (await branches()).map(({ branch_name }) => branch_name);
  const before = await names();
  const unfinished = join(repository, '.git/rebase-merge');
  mkdirSync(unfinished);
  expect(git('checkout', '-b', 'rebased').stderr).not.toContain('branchgate');
  rmSync(unfinished, { recursive: true });
  expect([await names(), existsSync(join(repository, FILE))]).toEqual([before, false]);

  const other = await api.project('Elsewhere');
  const link = join(repository, '.branchgate.json');
  writeFileSync(link, JSON.stringify({ url, project: other.id }));
  git('checkout', '--quiet', 'trunk');
  expect(git('checkout', '-b', 'linked').stderr).toContain('not followed');
  await urlIn(repository);
  expect(await names()).toContain('linked');
  const { body } = await api.get<{ branches: BranchBody[] }>(`/api/v1/projects/${other.id}/branches`);
  expect(body.branches.map(({ branch_name }) => branch_name)).toEqual(['main']);
  rmSync(link);
  git('checkout', '--quiet', 'trunk');
});

test('at the limit of branches the hook says so, and git succeeds', async () => {
  const { body } = await api.get<{ branch_limit: number; branch_count: number }>(
    `/api/v1/projects/${project}`,
  );
  const count = body.branch_limit - body.branch_count;
  const filled = { count, name_prefix: 'full-' };
  expect((await api.post(`/api/v1/projects/${project}/branches/batch`, filled)).status).toBe(201);
  const checkout = git('checkout', '-b', 'too-many');
  expect(checkout).toMatchObject({ code: 0 });
  await eventually(async () =>
    expect(checkout.stderr + readFileSync(join(repository, '.git/branchgate.log'), 'utf8')).toContain(
      'BRANCH_LIMIT_REACHED',
    ),
  );
  expect(existsSync(join(repository, FILE))).toBe(false);
  for (const { branch_name } of await branches())
    if (branch_name.startsWith('full-'))
      await api.delete(`/api/v1/projects/${project}/branches/${branch_name}?purge=true`);
  git('checkout', '--quiet', 'trunk');
});

const NAMES = ['feature/one/two', 'fix/größe', 'n'.repeat(200), 'Case/Name', 'case/name'];

test.runIf(IS_NIGHTLY)('names of every form get branches that differ, without a word', async () => {
  const urls = new Set<string>();
  for (const [at, name] of NAMES.entries()) {
    const worktree = join(cli.folder, `named-${at}`);
    expect(git('worktree', 'add', worktree, '-b', name)).toMatchObject({ code: 0 });
    urls.add(await urlIn(worktree));
    const made = (await branches()).filter(({ labels }) => labels.git === name.slice(0, 63));
    expect([name, made.length]).toEqual([name, 1]);
  }
  expect(urls.size).toBe(NAMES.length);
  for (const [at, name] of NAMES.entries()) {
    git('worktree', 'remove', '--force', join(cli.folder, `named-${at}`));
    git('branch', '-D', name);
  }
  expect(branchgate('git', 'prune', '--yes')).toMatchObject({ code: 0 });
});

test('a push is stopped by a migration that fails, and by no other', () => {
  const remote = join(cli.folder, 'remote.git');
  expect(run(['git', 'init', '--quiet', '--bare', remote], cli.folder).code).toBe(0);
  expect(branchgate('git', 'install', '--pre-push', 'exit 3')).toMatchObject({ code: 0 });
  expect(git('push', remote, 'trunk').code).not.toBe(0);
  expect(run(['git', 'for-each-ref'], remote).stdout).toBe('');
  expect(branchgate('git', 'install', '--pre-push', 'test -n "$DIRECT_URL"')).toMatchObject({ code: 0 });
  expect(git('push', remote, 'trunk')).toMatchObject({
    code: 0,
    stderr: expect.stringContaining('Comparing.'),
  });
  expect(run(['git', 'for-each-ref'], remote).stdout).toContain('refs/heads/trunk');
  expect(branchgate('git', 'install')).toMatchObject({ code: 0 });
});

test('prune deletes the branches whose git branch is gone, and no others', async () => {
  await api.post(`/api/v1/projects/${project}/branches`, { branch_name: 'of-others' }, FROM_LOOPBACK);
  git('checkout', '--quiet', '-b', 'short-lived');
  await urlIn(repository);
  git('checkout', '--quiet', 'trunk');
  git('branch', '-D', 'short-lived');
  const before = (await branches()).map(({ branch_name }) => branch_name);
  expect(before).toContain('short-lived');
  expect(branchgate('git', 'prune')).toMatchObject({ code: 2 });
  expect(branchgate('git', 'prune', '--yes')).toMatchObject({ code: 0 });
  const after = (await branches()).map(({ branch_name }) => branch_name);
  expect(after.toSorted()).toEqual(before.filter((name) => name !== 'short-lived').toSorted());
});

test('uninstall restores the hooks byte by byte, and hooks inside of the tree are left alone', () => {
  expect(branchgate('git', 'uninstall')).toMatchObject({ code: 0 });
  expect(readFileSync(hookOf('post-checkout'))).toEqual(FORMER);
  for (const name of ['post-merge', 'pre-push', 'post-checkout.before-branchgate'])
    expect(existsSync(hookOf(name))).toBe(false);
  git('config', 'core.hooksPath', 'hooks');
  const { code, stdout } = branchgate('git', 'install', '--pre-push', 'false');
  expect({ code, hooks: existsSync(join(repository, 'hooks')) }).toEqual({ code: 0, hooks: false });
  expect(stdout.match(/^(post-checkout|post-merge|pre-push): /gm)).toHaveLength(3);
});
