import type { ChildProcess } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';

const PROJECTS = 1_000;
const BRANCHES_EACH = 20;
const LIMIT_MB = 120;
const DIGEST_MAX_BYTES = 100_000;

/** Names and marks of databases in the catalog, without files: nobody connects to them. */
const MARKS = `
  SET allow_system_table_mods = on;
  CREATE TEMPORARY TABLE mark AS
    SELECT (5000000 + p * 100 + b)::text AS mark_oid, format('db_shop-%s_prod_br_%s', p, b) AS name,
      gen_random_uuid() AS branch_id, project_id
    FROM (SELECT p, gen_random_uuid() AS project_id FROM generate_series(1, ${PROJECTS}) AS p) AS project,
      generate_series(1, ${BRANCHES_EACH}) AS b;
  INSERT INTO pg_database
    SELECT (jsonb_populate_record(template, jsonb_build_object('oid', mark_oid, 'datname', name, 'datacl', null))).*
    FROM pg_database AS template, mark WHERE template.datname = 'template0';
  INSERT INTO pg_shdescription
    SELECT mark_oid::oid, 'pg_database'::regclass, json_build_object(
      'branch_id', branch_id, 'project_id', project_id, 'job_id', branch_id)::text
    FROM mark`;

/** Highest resident memory of the process until its end, in bytes (proc(5)). */
async function peakOf({ pid, stdout }: ChildProcess): Promise<number> {
  // A full pipe would hold the process.
  stdout?.resume();
  let peak = 0;
  for (;;) {
    try {
      const status = readFileSync(`/proc/${pid}/status`, 'utf8');
      const kilobytes = /^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1];
      if (kilobytes === undefined) return peak;
      peak = Number(kilobytes) * 1024;
    } catch {
      return peak;
    }
    await sleep(10);
  }
}

describe.runIf(IS_NIGHTLY)(`a host of ${PROJECTS * BRANCHES_EACH} databases`, () => {
  let servers: TestHost;
  beforeAll(async () => {
    servers = await startHost();
    await servers.query(MARKS);
  });
  afterAll(() => servers?.stop());

  test('has a short digest', async () => {
    const { stdout, exitCode } = await servers.tool('--json', 'inventory', 'digest');
    expect(exitCode).toBe(0);
    const { groups } = JSON.parse(stdout) as { groups: Record<string, { count: number }> };
    const total = Object.values(groups).reduce((sum, { count }) => sum + count, 0);
    expect(total).toBe(PROJECTS * BRANCHES_EACH);
    expect(stdout.length).toBeLessThan(DIGEST_MAX_BYTES);
  });

  test.each([
    ['the digest', ['inventory', 'digest']],
    ['a page of all', ['inventory', 'list', '--groups', JSON.stringify(allGroups())]],
  ])(`is read within ${LIMIT_MB} MB: %s`, async (_, words) => {
    const peak = await peakOf(await servers.spawnTool('--json', ...words));
    expect(peak / 1e6).toBeGreaterThan(40);
    expect(peak / 1e6).toBeLessThan(LIMIT_MB);
  });
});

function allGroups(): string[] {
  return Array.from({ length: 256 }, (_, n) => n.toString(16).padStart(2, '0'));
}
