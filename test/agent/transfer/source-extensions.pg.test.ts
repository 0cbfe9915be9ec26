import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { extensionsFolder } from '../../../agent/process/settings.ts';
import type { MethodResult } from '../../../shared/protocol/operations.ts';
import { eventually } from '../../support/eventually.ts';
import { BANK, Follower, STATE, TRANSFER } from '../../support/host/follower.ts';
import { Project } from '../../support/host/host-project.ts';
import { firstByDay, IS_NIGHTLY } from '../../support/nightly.ts';
import { OLDER_VERSIONS, programsOf } from '../../support/older-servers.ts';
import { installStandIn } from '../../support/stand-in-postgis.ts';

/** Sources as providers deliver them: what a check, a copy and following say of each, in every version. */

interface Case {
  /** As the provider and the application have made it, next to the bank. */
  made: string;
  /** Extensions that the project is created with. */
  extensions?: string[];
  /** Problems that are errors. */
  errors: string[];
  /** The request that then has none. */
  way?: object;
  /** Problems that are warnings then. */
  warnings: string[];
  /** The same here as at the source. */
  same?: string;
}

const CASES: Record<string, Case> = {
  'pg_stat_statements, which nothing uses': {
    made: 'create extension pg_stat_statements',
    errors: [],
    warnings: ['extension'],
  },
  'an extension that a view and a function use': {
    made: `create extension pageinspect; create view pages as select * from heap_page_items(get_raw_page('account', 0));
      create function first_page() returns bytea language plpgsql as $$ begin return get_raw_page('account', 0); end $$; alter view pages owner to app; alter function first_page() owner to app`,
    errors: [],
    warnings: ['extension'],
  },
  'an extension that an index needs': {
    made: 'create extension bloom; create table searched (id int primary key); alter table searched owner to app; create index on searched using bloom (id)',
    errors: ['extension'],
    way: { exclude_tables: ['searched'] },
    warnings: ['extension'],
  },
  'PostGIS, which nothing uses': { made: 'create extension postgis', errors: [], warnings: ['extension'] },
  'PostGIS, which a column needs, and a project without it': {
    made: 'create extension postgis; create table place (id int primary key, at geometry); alter table place owner to app',
    errors: ['extension'],
    way: { exclude_tables: ['place'] },
    warnings: ['extension'],
  },
  'PostGIS, and a project that was created with it': {
    // The platform owns the schema `public` of such a project.
    made: `comment on schema public is 'of the shop'; create extension postgis; create table place (id int primary key, at geometry default st_point(1, 2)); alter table place owner to app;
      insert into place select n, st_point(n, -n) from generate_series(1, 5) n; insert into place values (6)`,
    extensions: ['postgis'],
    errors: [],
    warnings: [],
    same: 'select id, at::text from place order by id',
  },
  'PostGIS in another schema, which a column needs': {
    made: 'create schema extensions; create extension postgis schema extensions; create table place (id int primary key, at extensions.geometry); alter table place owner to app',
    extensions: ['postgis'],
    errors: ['extension'],
    way: { exclude_tables: ['place'] },
    warnings: ['extension'],
  },
  'a schema like that of pg_cron, which the login cannot read': {
    made: `create schema cron; create table cron.job (jobid bigint primary key, command text); create sequence cron.jobid_seq;
      create function cron.schedule(text) returns bigint language sql as 'select 1::bigint'`,
    errors: ['rights'],
    way: { exclude_schemas: ['cron'] },
    warnings: [],
  },
  'a schema like that of supabase_vault, with a view of secrets': {
    made: `create schema vault; create table vault.secrets (id int primary key, secret text);
      create function vault.decrypted(text) returns text language sql security definer as 'select $1';
      create view vault.decrypted_secrets as select id, vault.decrypted(secret) as secret from vault.secrets; grant usage on schema vault to app`,
    errors: ['rights'],
    way: { exclude_schemas: ['vault'] },
    warnings: [],
  },
};

const UNDO = `comment on schema public is 'standard public schema'; drop extension if exists pg_stat_statements, pageinspect, bloom, postgis cascade;
  drop schema if exists extensions, cron, vault cascade; drop table if exists searched, place cascade; drop function if exists first_page`;

const VERSIONS = IS_NIGHTLY ? [...OLDER_VERSIONS, '18'] : ['18'];
/** The oldest whose changes can be followed. */
const FOLLOWED = 15;

describe.each(VERSIONS)('a source of version %s', (version) => {
  let follower: Follower;
  beforeAll(async () => {
    const programs = version === '18' ? undefined : programsOf(version);
    follower = await Follower.start(
      programs,
      "wal_level = logical\nmax_replication_slots = 4\nmax_wal_senders = 4\nmax_slot_wal_keep_size = '1GB'\npassword_encryption = 'scram-sha-256'\n",
      { PROJECT_EXTENSIONS: 'postgis' },
    );
    const { servers, source } = follower;
    const folder = join(servers.settings.STATE_DIR, 'stand-in');
    await installStandIn(servers, folder, { before: [extensionsFolder(servers.settings)] });
    const own = programs === undefined ? folder : join(programs, '../share/postgresql');
    await installStandIn({ query: source.run }, own, { isSearched: programs !== undefined });
    await source.run('alter schema public owner to app');
    await source.run(BANK);
  });
  afterAll(() => follower?.stop());

  const errorsOf = ({ findings }: { findings: MethodResult<'transfer.probe'>['findings'] }) => [
    ...new Set(findings.flatMap(({ severity, problem }) => (severity === 'error' ? [problem] : []))),
  ];
  const warningsOf = ({ findings }: { findings: MethodResult<'transfer.probe'>['findings'] }) => [
    ...new Set(
      findings.flatMap(({ severity, problem }) =>
        severity === 'warning' && !['no_key', 'schema'].includes(problem) ? [problem] : [],
      ),
    ),
  ];
  let made = 0;
  async function newMain(extensions: string[]) {
    made += 1;
    follower.project = new Project(follower.servers.host);
    follower.project.extensions = extensions;
    follower.main = await follower.project.create(`db_source_${made}`, null);
  }
  const probe = (use: 'import' | 'follow', way: object = {}) =>
    follower.run('transfer.probe', {
      project_id: follower.project.id,
      source_url: follower.source.url(),
      use,
      into: { branch_id: follower.main.branch_id, database: follower.main.database },
      tables: null,
      publication: null,
      room_bytes: 2 ** 30,
      ...way,
    });

  test.each(firstByDay(1, Object.entries(CASES)))('%s', async (_, one) => {
    const { source } = follower;
    await source.run(UNDO);
    await source.run(one.made);
    await newMain(one.extensions ?? []);
    const same = async () => {
      expect(await follower.here(STATE)).toEqual(await source.run(STATE));
      if (one.same) expect(await follower.here(one.same)).toEqual(await source.run(one.same));
    };

    expect(errorsOf(await probe('import'))).toEqual(one.errors);
    if (one.errors.length > 0) {
      const refused = await follower.run('transfer.copy', follower.copyParams({ follow: null }));
      expect([refused.copied, errorsOf(refused)]).toEqual([null, one.errors]);
    }
    const probed = await probe('import', one.way);
    expect([errorsOf(probed), warningsOf(probed)]).toEqual([[], one.warnings]);
    await follower.copy(follower.copyParams({ follow: null, ...one.way }));
    await same();
    await follower.project.remove();

    await newMain(one.extensions ?? []);
    const isOld = Number(version) < FOLLOWED;
    expect(errorsOf(await probe('follow'))).toEqual(
      isOld ? expect.arrayContaining(['version']) : expect.arrayContaining(one.errors),
    );
    expect(errorsOf(await probe('follow', one.way))).toEqual(isOld ? ['version'] : []);
    if (isOld) return;
    await follower.copy(follower.copyParams(one.way));
    await follower.run('follow.start', follower.startParams());
    await source.run(TRANSFER);
    await follower.untilLevel();
    // The schemas are compared for it, without what was left out.
    await source.run('alter table account add column note text');
    await source.run("update account set note = 'new' where id = 1");
    await eventually(async () =>
      expect(await follower.here('select note from account where id = 1')).toEqual([{ note: 'new' }]),
    );
    await same();
    expect(await follower.status()).toMatchObject({ problem: null });
    await follower.end();
    await source.run('alter table account drop column note');
  });
});
