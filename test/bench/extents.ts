import { execFileSync } from 'node:child_process';
import { readdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type pg from 'pg';
import { devFolder, gatewaySecrets } from '../../dev/stack/dev-folder.ts';
import { Api } from '../support/api.ts';
import type { Stack } from '../support/stack/stack.ts';
import type { FilledMain } from './filled-main.ts';

/** Smaller files have a negligible number of extents. */
const LARGE_FILE_BYTES = 2 ** 20;

export async function folderOf(postgres: pg.Client, stack: Stack, database: string): Promise<string> {
  const { rows } = await postgres.query<{ oid: number }>('select oid from pg_database where datname = $1', [
    database,
  ]);
  return join(stack.state.data_dir, 'base', String(rows[0]?.oid));
}

export const largeFiles = (folder: string) =>
  readdirSync(folder)
    .map((name) => join(folder, name))
    .filter((path) => statSync(path).size >= LARGE_FILE_BYTES);

export function countExtents(folder: string): number {
  const lines = execFileSync('filefrag', largeFiles(folder), { encoding: 'utf8' });
  return [...lines.matchAll(/: (\d+) extents? found/g)].reduce((sum, [, count]) => sum + Number(count), 0);
}

/** The defaults are ten branches and 5 GiB per project. */
export async function raiseCaps(
  stack: Stack,
  api: Api,
  { project }: FilledMain,
  branches = 20,
): Promise<void> {
  const platform = new Api(stack.url, gatewaySecrets(devFolder(stack.devDir)).PLATFORM_SECRET);
  const changes = [
    await platform.patch(`/platform/v1/projects/${project.id}`, {
      branch_limit: branches,
      storage_quota_cap_gib: 20,
    }),
    await api.patch(`/api/v1/projects/${project.id}`, { storage_quota_gib: 20 }),
  ];
  for (const { status, body } of changes)
    if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
}
