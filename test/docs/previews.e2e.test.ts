import { execFile } from 'node:child_process';
import { chmodSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, inject, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import type { Api, ProjectBody } from '../support/api.ts';
import { CommandLine } from '../support/command-line.ts';
import { query } from '../support/database.ts';
import { ownerOf } from '../support/tenants.ts';

const run = promisify(execFile);
const { url } = inject('stack');

/** The recipes as they stand in the document. */
const RECIPES = [
  ...readFileSync(join(ROOT, 'docs/serverless.md'), 'utf8').matchAll(/^```sh\n(.*?)^```$/gms),
].map(([, block = '']) => block);
const recipe = (part: string) => {
  const found = RECIPES.filter((block) => block.includes(part));
  expect(found, part).toHaveLength(1);
  return found[0] ?? '';
};

let api: Api;
let project: ProjectBody;
let cli: CommandLine;

/** A program that the recipes call. */
function program(name: string, script: string): void {
  const file = join(cli.folder, 'bin', name);
  writeFileSync(file, `#!/bin/sh\n${script}\n`);
  chmodSync(file, 0o755);
}
const written = (name: string) => readFileSync(join(cli.folder, name), 'utf8');

beforeAll(async () => {
  api = await ownerOf('previews');
  project = await api.project('Previews');
  await api.allow(project.id);
  const { body: key } = await api.post<{ key: string }>('/api/v1/api-keys', {
    name: 'previews',
    role: 'operator',
    scopes: ['branchgate:write'],
    expires_in_days: 1,
    project_id: project.id,
    branch_pattern: 'pr-*',
  });
  cli = await CommandLine.open({
    BRANCHGATE_URL: url,
    BRANCHGATE_PROJECT: project.id,
    BRANCHGATE_API_KEY: key.key,
    PULL_REQUEST: '7',
  });
  mkdirSync(join(cli.folder, 'bin'));
  program('branchgate', `exec ${cli.words.map((word) => `'${word}'`).join(' ')} "$@"`);
  program('npm', 'psql -qAt -c "create table if not exists migrated (n int)" >/dev/null');
  // `vercel` reads the value of a variable that has none from its environment, `wrangler` a secret from its input.
  program(
    'npx',
    `cd '${cli.folder}' && printf '%s\\n' "$*" >> calls && case "$1 $2" in
      'vercel deploy') printf %s "$DATABASE_URL" > deployed;;
      'wrangler secret') cat > deployed;;
    esac`,
  );
});
afterAll(() => rmSync(cli.folder, { recursive: true, force: true }));

async function type(script: string): Promise<void> {
  const PATH = `${join(cli.folder, 'bin')}:${process.env.PATH}`;
  await run('sh', ['-euc', script], { cwd: cli.folder, env: { ...cli.environment, PATH } });
}

/** The work of a deployed function, from an address that no port is open for. */
async function invoke(deployed: string): Promise<object> {
  const response = await fetch(`${url}/sql`, {
    method: 'POST',
    headers: { 'Neon-Connection-String': deployed, 'CF-Connecting-IP': '198.51.100.77' },
    body: JSON.stringify({ query: 'select count(*)::int as n from migrated', params: [] }),
  });
  return (await response.json()) as object;
}

const branches = async () => {
  const path = `/api/v1/projects/${project.id}/branches`;
  const { body } = await api.get<{ branches: { branch_name: string }[] }>(path);
  return body.branches.map(({ branch_name }) => branch_name);
};

test.each([
  ['Vercel', 'npx vercel deploy', ['vercel deploy --yes --env DATABASE_URL']],
  [
    'Cloudflare',
    'npx wrangler secret put',
    ['wrangler deploy --name shop-pr-7', 'wrangler secret put DATABASE_URL --name shop-pr-7'],
  ],
])('the recipe for %s gives a preview a branch of its own, again with each push', async (_, part, calls) => {
  for (const push of [1, 2]) {
    rmSync(join(cli.folder, 'calls'), { force: true });
    await type(recipe(part));
    expect(written('calls').trim().split('\n'), `push ${push}`).toEqual(calls);
    const deployed = written('deployed');
    expect(written('calls')).not.toContain(new URL(deployed).password);
    expect(await invoke(deployed)).toMatchObject({ rows: [{ n: 0 }] });
    expect(await branches()).toEqual(['main', 'pr-7']);
  }
  const { direct_url } = await api.credentials(project.id, 'main');
  expect(await query(direct_url, "select to_regclass('migrated')::text as found")).toEqual([{ found: null }]);

  await type(recipe('npx wrangler delete'));
  expect(await branches()).toEqual(['main']);
  expect(await invoke(written('deployed'))).toMatchObject({ code: '28P01' });
  expect(existsSync(join(cli.folder, 'branchgate-ca.pem'))).toBe(false);
});
