import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Host } from '../../../../agent/host/host.ts';
import { killDumps } from '../../../support/host/dump-processes.ts';
import { asRoot, type TestHost } from '../../../support/host/host.ts';
import { schemaDifference } from '../../../support/host/host-differences.ts';
import {
  asClient,
  type Branch,
  type HostWithProject,
  makeProject,
  removeProjects,
} from '../../../support/host/host-project.ts';
import { firstByDay } from '../../../support/nightly.ts';

/** Code that takes its time where statements are tried, and nowhere else. PostgreSQL computes it twice when an index is made. */
const waits = (
  seconds: number,
) => `CREATE FUNCTION waits(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
  IF pg_catalog.current_database() ~ '^bgproof_' THEN PERFORM pg_catalog.pg_sleep(${seconds}); END IF; RETURN n; END $$;
  CREATE TABLE slow (n int)`;
const indexes = (count: number) =>
  Array.from({ length: count }, (_, n) => `CREATE INDEX slow_${n} ON slow ((n + public.waits(${n})))`).join(
    '; ',
  );
const functions = (count: number) => `DO $do$ BEGIN FOR n IN 1..${count} LOOP
  EXECUTE format('CREATE FUNCTION f%s() RETURNS text LANGUAGE plpgsql AS %L', n, 'BEGIN RETURN 1; /*' || repeat('x', 1000000) || '*/ END');
  END LOOP; END $do$`;
const domains = (count: number) =>
  `DO $do$ BEGIN FOR n IN 1..${count} LOOP EXECUTE format('CREATE DOMAIN d%s AS int', n); END LOOP; END $do$`;

/** Changes whose proof needs more room or time than it gets. */
const UNTRIED: [what: string, base: string, change: string, reason: 'too_large' | 'too_long'][] = [
  ['a statement takes more than 5 s', waits(600), indexes(1), 'too_long'],
  ['definitions have more than 6 MiB', functions(7), 'CREATE TABLE more (id int)', 'too_large'],
  ['the statements take more than 15 s', waits(2), indexes(5), 'too_long'],
  [
    'the schema takes more than 5 s',
    `${waits(600)}; ${indexes(1)}`,
    'CREATE TABLE more (id int)',
    'too_long',
  ],
  ['a schema has more than 12,000 objects', domains(12_001), 'CREATE TABLE more (id int)', 'too_large'],
];

export function describeProofs(servers: () => TestHost): void {
  let stage: HostWithProject;
  beforeAll(async () => {
    stage = await makeProject(servers(), 'db_proofs', 'SELECT');
  });
  afterAll(() => removeProjects(stage.servers));

  const differenceFromTo = (before: Branch, after: Branch, host: Host = stage.servers.host) =>
    schemaDifference(host, before, after);
  async function twoBranches(base: string, change: string): Promise<[before: Branch, after: Branch]> {
    const before = await stage.project.create('db_proofs_br_before', null);
    await asClient(stage.servers.host, 'direct', before, 'owner', base);
    const after = await stage.project.create('db_proofs_br_after', before.database);
    await asClient(stage.servers.host, 'direct', after, 'owner', change);
    return [before, after];
  }
  async function expectNothingLeft(...branches: Branch[]) {
    expect(await stage.servers.query("SELECT FROM pg_database WHERE datname ~ '^bgproof_'")).toEqual([]);
    expect(await stage.servers.query('SELECT FROM pg_roles WHERE rolvaliduntil IS NOT NULL')).toEqual([]);
    for (const branch of branches) await stage.project.drop(branch);
  }

  test.each(firstByDay(2, UNTRIED))(
    'are shown without one, with the reason, if %s',
    async (_, base, change, unproven_reason) => {
      const [before, after] = await twoBranches(base, change);
      const { changes, statements, ...proof } = await differenceFromTo(before, after);
      const made = change.split('; ').length;
      expect([changes.length, statements.length]).toEqual([made, made]);
      expect(proof).toEqual({ not_modelled: [], schema_proven: false, unproven_reason });
      await expectNothingLeft(before, after);
    },
  );

  test('whose dump is killed are refused, and the next ones are proven', async () => {
    const [before, after] = await twoBranches('SELECT', 'CREATE TABLE more (id int)');
    const { host, settings } = stage.servers;
    const POSTGRES_BIN = join(settings.STATE_DIR, 'held');
    // A dump of a scratch database waits, in the process that is killed.
    asRoot(() => {
      mkdirSync(POSTGRES_BIN);
      writeFileSync(
        join(POSTGRES_BIN, 'pg_dump'),
        `#!/bin/sh
case "$PGDATABASE" in bgproof_*) mkfifo "$HOME/held"; read -r line < "$HOME/held";; esac
exec ${settings.POSTGRES_BIN}/pg_dump "$@"
`,
        { mode: 0o755 },
      );
    });
    // Both sides are known then, so the only dump is that of the proof.
    expect(await differenceFromTo(before, after)).toMatchObject({ schema_proven: true });
    const compared = differenceFromTo(before, after, { ...host, settings: { ...settings, POSTGRES_BIN } });
    compared.catch(() => {});
    await killDumps(settings);
    await expect(compared).rejects.toMatchObject({ code: 'HOST_BUSY' });
    asRoot(() => rmSync(POSTGRES_BIN, { recursive: true }));
    expect(await differenceFromTo(before, after)).toMatchObject({ schema_proven: true });
    await expectNothingLeft(before, after);
  });
}
