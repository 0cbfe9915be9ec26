import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { createClient } from '../../client/client.ts';
import { ROOT } from '../../dev/build/repository.ts';
import { branchSetup } from '../../vitest/fixture.ts';
import { goldenBranch, goldenSnapshot } from '../../vitest/golden-branch.ts';
import type { Api, ProjectBody } from '../support/api.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { temporaryFolder } from '../support/stack/stack.ts';
import { ownerOf, tokenOf } from '../support/tenants.ts';

/** A project of a user of the fixture: migrations, tests that write, and a configuration of Vitest. */
const folder = temporaryFolder();
let api: Api;
let project: ProjectBody;
let env: Record<string, string>;

const file = (name: string, text: string) => writeFileSync(join(folder, name), text);

/** Every file finds the migrated rows, and on the branch of its worker only what earlier files of the worker left. */
const TEST_FILE = (n: number, pause: number) => `
import { expect, test } from 'vitest';
import pg from '${ROOT}/node_modules/pg/lib/index.js';
import { branchPerFile, workerBranch } from '${ROOT}/vitest/fixture.ts';

async function insertInto({ direct }) {
  const client = new pg.Client(direct);
  await client.connect();
  await client.query('insert into item values ($1)', [${n}]);
  const { rows } = await client.query('select n from item order by n');
  await client.end();
  return rows.map(({ n }) => n);
}

test('a branch of the worker', async () => {
  const found = await insertInto(workerBranch());
  expect(found[0]).toBe(0);
  expect(found).toContain(${n});
});

test('a branch of the file', async () => {
  const branch = await branchPerFile();
  expect(await insertInto(branch)).toEqual([0, ${n}]);
  await new Promise((resolve) => setTimeout(resolve, ${pause}));
  await branch.end();
});`;

function writeProject(files: number, workers: number, pause: number): void {
  mkdirSync(join(folder, 'migrations'), { recursive: true });
  file('package.json', '{ "type": "module" }');
  file('migrations/1.sql', 'create table item (n int); insert into item values (0);');
  file(
    'setup.ts',
    `import { execFileSync } from 'node:child_process';
import { appendFileSync, readFileSync } from 'node:fs';
import pg from '${ROOT}/node_modules/pg/lib/index.js';
import { branchSetup } from '${ROOT}/vitest/fixture.ts';
export default branchSetup({
  workers: ${workers},
  leaseSeconds: ${IS_NIGHTLY ? 30 : 300},
  migrations: ['migrations/*.sql'],
  migrate: async ({ direct_url, ca_certificate: ca }) => {
    appendFileSync('migrated', '.');
    // As a tool for migrations runs: a process of its own, which gets the URL.
    execFileSync(process.execPath, ['-e', \`const { Client } = require('${ROOT}/node_modules/pg');
      const client = new Client({ connectionString: process.env.DATABASE_URL });
      client.connect().then(() => client.query('select 1')).then(() => client.end());\`],
      { env: { ...process.env, DATABASE_URL: direct_url } });
    const url = new URL(direct_url);
    url.search = '';
    const client = new pg.Client({ connectionString: url.href, ssl: { ca } });
    // Without it, the end of the session, which goes with its branch, would end the process before it reports the failure.
    client.on('error', () => {});
    await client.connect();
    await client.query(readFileSync('migrations/1.sql', 'utf8')).finally(() => client.end());
  },
});`,
  );
  file(
    'vitest.config.ts',
    `export default { test: { globalSetup: './setup.ts', maxWorkers: ${workers}, minWorkers: ${workers}, testTimeout: 60000, hookTimeout: 60000 } };`,
  );
  for (let n = 1; n <= files; n++) file(`file-${n}.test.ts`, TEST_FILE(n, pause));
}

function start() {
  const { PATH = '' } = process.env;
  const command = [join(ROOT, 'node_modules/vitest/vitest.mjs'), 'run', '--root', folder];
  const child = spawn(process.execPath, command, {
    cwd: folder,
    env: { PATH, HOME: folder, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (text: string) => {
      output += text;
    });
  return { child, ended: once(child, 'close').then(([code]) => ({ code: code as number | null, output })) };
}

async function branchNames(): Promise<string[]> {
  const path = `/api/v1/projects/${project.id}/branches`;
  const { body } = await api.get<{ branches: { branch_name: string }[] }>(path);
  return body.branches.map(({ branch_name }) => branch_name);
}

beforeAll(async () => {
  api = await ownerOf('fixture');
  project = await api.project('Fixture');
  env = {
    BRANCHGATE_URL: inject('stack').url,
    BRANCHGATE_TOKEN: await tokenOf({ tenant: 'fixture' }),
    BRANCHGATE_PROJECT: project.id,
  };
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const GOLDEN = expect.stringMatching(/^golden-[0-9a-f]{12}-/);

test('each worker and file has a branch with the migrations, which run once for their content', async () => {
  writeProject(3, 2, 0);
  const first = await start().ended;
  expect([first.code, first.output]).toEqual([0, expect.stringContaining('6 passed')]);
  expect(await branchNames()).toEqual(['main', GOLDEN]);
  const second = await start().ended;
  expect([second.code, second.output]).toEqual([0, expect.stringContaining('6 passed')]);
  expect(readFileSync(join(folder, 'migrated'), 'utf8')).toBe('.');
});

test.runIf(IS_NIGHTLY)(
  'the branches are made from a snapshot of the migrated branch, which has the wanted spares',
  async () => {
    process.env.BRANCHGATE_TOKEN = env.BRANCHGATE_TOKEN;
    const snapshotOf = async (more: { spares?: number }) => {
      const options = { url: env.BRANCHGATE_URL ?? '', project: project.id, workers: 1, migrate: () => {} };
      const tearDown = await branchSetup({
        ...options,
        ...more,
        migrations: [join(folder, 'migrations/*.sql')],
      })();
      await tearDown();
      return JSON.parse(process.env.BRANCHGATE_TEST_BRANCHES ?? '').source.snapshot_id;
    };
    try {
      const taken = await snapshotOf({});
      expect(await snapshotOf({ spares: 2 })).toBe(taken);
      const { body } = await api.get(`/api/v1/projects/${project.id}/snapshots`);
      expect(body.snapshots).toContainEqual(
        expect.objectContaining({ id: taken, name: 'golden', spares: 2 }),
      );
    } finally {
      delete process.env.BRANCHGATE_TEST_BRANCHES;
      delete process.env.BRANCHGATE_TOKEN;
    }
  },
);

test('a snapshot that is refused is no reason to stop', async () => {
  const client = createClient({ url: env.BRANCHGATE_URL ?? '', token: env.BRANCHGATE_TOKEN ?? '' });
  // An unknown branch is refused by a `ResponseError`, as a limit is.
  expect(await goldenSnapshot(client, project.id, 'unknown', undefined)).toBeNull();
});

test.runIf(IS_NIGHTLY)('the branches have the wanted data, and a new policy makes another one', async () => {
  const path = `/api/v1/projects/${project.id}`;
  const policy = { rules: [], unlisted: 'keep' };
  expect((await api.call('PUT', `${path}/masking`, { body: policy })).status).toBe(200);
  const client = createClient({ url: env.BRANCHGATE_URL ?? '', token: env.BRANCHGATE_TOKEN ?? '' });
  const golden = (data: 'full' | 'masked' | 'none') =>
    goldenBranch(client, project.id, ['me'], {
      data,
      migrations: [join(folder, 'migrations/*.sql')],
      migrate: () => {},
    });
  const masked = await golden('masked');
  const none = await golden('none');
  const recordOf = async (id: string) => (await api.get(`${path}/branches/${id}`)).body;
  expect(await recordOf(masked)).toMatchObject({ data: 'masked', masking_version: 1 });
  expect(await recordOf(none)).toMatchObject({ data: 'none', keep_tables: [] });
  expect(await golden('masked')).toBe(masked);
  const stricter = { ...policy, unlisted: 'refuse_likely_personal' };
  await api.call('PUT', `${path}/masking`, { body: stricter });
  const again = await golden('masked');
  expect(await recordOf(again)).toMatchObject({ masking_version: 2 });
  for (const id of [masked, none, again]) await api.delete(`${path}/branches/${id}?purge=true`);
});

test.runIf(IS_NIGHTLY)(
  'a failure is loud: without a project no test runs, and a failed migration leaves no branch',
  async () => {
    const { BRANCHGATE_PROJECT, ...others } = env;
    env = others;
    const missing = await start().ended;
    expect([missing.code, missing.output]).toEqual([
      1,
      expect.stringContaining('BRANCHGATE_PROJECT is missing'),
    ]);
    env = { ...others, BRANCHGATE_PROJECT: BRANCHGATE_PROJECT ?? '' };
    file('migrations/1.sql', 'create table broken (');
    const before = await branchNames();
    const broken = await start().ended;
    expect([broken.code, broken.output]).toEqual([1, expect.stringContaining('syntax error')]);
    expect(broken.output).not.toContain('passed');
    expect(await branchNames()).toEqual(before);
  },
);

test.runIf(IS_NIGHTLY)('in a full project no test runs, and the refusal names the limit', async () => {
  const full = await api.project('Full');
  await api.fill(full.id);
  env = { ...env, BRANCHGATE_PROJECT: full.id };
  writeProject(1, 1, 0);
  const { code, output } = await start().ended;
  expect([code, output]).toEqual([1, expect.stringMatching(/branch_limit.*platform operator/s)]);
  expect(output).not.toContain('passed');
  env = { ...env, BRANCHGATE_PROJECT: project.id };
});

/** Waits for leases of 30 seconds. */
test.runIf(IS_NIGHTLY)(
  '20 files of 4 workers, killed in the middle, leave nothing after the lease',
  async () => {
    writeProject(20, 4, 2_000);
    const { child, ended } = start();
    await expect.poll(branchNames, { timeout: 60_000 }).toContainEqual(expect.stringMatching(/^file-/));
    process.kill(-(child.pid ?? 0), 'SIGKILL');
    await ended;
    expect((await branchNames()).length).toBeGreaterThan(4);
    await expect
      .poll(async () => (await branchNames()).filter((name) => !/^(?:main$|golden-)/.test(name)), {
        timeout: 60_000,
        interval: 2000,
      })
      .toEqual([]);
  },
  180_000,
);

/** It installs packages and a second Node. */
test.runIf(IS_NIGHTLY)('the package loads on Node 20', { timeout: 300_000 }, async () => {
  const user = temporaryFolder();
  const npm = (...words: string[]) => execFileSync('npm', words, { cwd: user, encoding: 'utf8' });
  const packed = npm('pack', join(ROOT, 'vitest'), '--silent', '--pack-destination', user).trim();
  writeFileSync(join(user, 'package.json'), '{ "type": "module" }');
  const archive = join(user, packed.split('\n').at(-1) ?? '');
  const node20 = `node-linux-${process.arch}`;
  npm('install', '--ignore-scripts', '--no-audit', '--no-fund', archive, `${node20}@20`);
  const program =
    "import * as all from '@branchgate/vitest'; console.log(process.version, Object.keys(all).sort().join())";
  const printed = execFileSync(
    join(user, 'node_modules', node20, 'bin/node'),
    ['--input-type=module', '-e', program],
    {
      cwd: user,
      encoding: 'utf8',
    },
  );
  expect(printed).toMatch(/^v20\.\S+ branchPerFile,branchSetup,workerBranch/);
  rmSync(user, { recursive: true });
});
