import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type Server, type Socket } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runOperation } from '../../../agent/operations/handlers.ts';
import { Copies } from '../../../agent/transfer/copies.ts';
import { limitFinding } from '../../../agent/transfer/follow-places.ts';
import { readSourceUrl } from '../../../agent/transfer/source-address.ts';
import { dumpSource } from '../../../agent/transfer/source-schema.ts';
import type { MethodResult, Params } from '../../../shared/protocol/operations.ts';
import { eventually } from '../../support/eventually.ts';
import { startHost, type TestHost } from '../../support/host/host.ts';
import { IS_NIGHTLY } from '../../support/nightly.ts';
import {
  OTHER_LOGIN,
  SEES_NO_OTHERS,
  SEES_OTHERS,
  SOURCE_LOGIN,
  type SourceServer,
  startSource,
} from '../../support/source-server.ts';

type Probe = MethodResult<'transfer.probe'>;

const PROJECT = '11111111-1111-4111-8111-111111111111';

/** What a customer's database has, with one of each kind that does not follow, or only in part. */
const SHOP = `
  create table book (id int primary key, title text);
  insert into book select n, repeat('x', 100) from generate_series(1, 500) n;
  create table sale (id int, at timestamptz, primary key (id, at)) partition by range (at);
  create table sale_old partition of sale for values from (minvalue) to ('2026-01-01');
  create table sale_new partition of sale default;
  create table visit (at timestamptz);
  create table logged (at timestamptz); alter table logged replica identity full;
  create unlogged table cache (id int primary key);
  create schema "Own"; create table "Own"."Odd name" (id int primary key);
  alter table book owner to app; alter table sale owner to app; alter table sale_old owner to app;
  alter table sale_new owner to app; alter table visit owner to app; alter table logged owner to app;
  alter table cache owner to app; alter schema "Own" owner to app; alter table "Own"."Odd name" owner to app;
  analyze`;

let source: SourceServer;
let servers: TestHost;
beforeAll(async () => {
  source = await startSource();
  servers = await startHost({ settings: { FOLLOW_PRIVATE_NETWORKS: '127.0.0.0/8' } });
  await source.run(SHOP);
});
afterAll(async () => {
  await servers?.stop();
  await source?.stop();
});

const WANTED = { use: 'follow', into: null, tables: null, publication: null, room_bytes: 2 ** 30 } as const;

async function probe(more: Partial<Params<'transfer.probe'>> = {}): Promise<Probe> {
  const params = { ...WANTED, source_url: source.url(), ...more };
  const result = await runOperation(servers.host, 'transfer.probe', { project_id: PROJECT, ...params });
  expect(JSON.stringify(result)).not.toContain(SOURCE_LOGIN.password);
  return result;
}

const problems = ({ findings }: Probe) =>
  findings.map(({ problem, object }) => [problem, object].join(' ').trim());
const only = async (more: Partial<Params<'transfer.probe'>>) => problems(await probe(more));

/** Runs `action` while the source is as `change` makes it. */
async function during(change: string, undo: string, action: () => Promise<void>) {
  await source.run(change);
  try {
    await action();
  } finally {
    await source.run(undo);
  }
}

const errorsOf = ({ findings }: Probe) =>
  findings
    .filter(({ severity }) => severity === 'error')
    .map(({ problem, object }) => [problem, object].join(' ').trim());

describe('a source that can be followed', () => {
  test('is described with its tables, and warned about where only a part follows', async () => {
    const { source: found, findings } = await probe();
    expect(found).toMatchObject({
      host: '127.0.0.1',
      port: source.port,
      database: 'shop',
      tls: 'channel_binding',
      has_more: false,
      version: expect.stringMatching(/^18/),
      free_slots: 4,
      wal_keep_bytes: null,
    });
    expect(found?.tables.map(({ schema, table, follows }) => `${schema}.${table} ${follows}`)).toEqual([
      'Own.Odd name all',
      'public.book all',
      'public.cache nothing',
      'public.logged all',
      'public.sale_new all',
      'public.sale_old all',
      'public.visit inserts',
    ]);
    expect(found?.tables.find(({ table }) => table === 'book')).toMatchObject({ rows: 500 });
    expect(found?.total_bytes).toBeGreaterThan(500 * 100);
    expect(findings.map(({ severity }) => severity)).toEqual(['warning', 'warning', 'warning']);
    expect(findings.find(({ problem }) => problem === 'no_key')).toMatchObject({
      object: 'public.visit',
      statement: 'ALTER TABLE public.visit REPLICA IDENTITY FULL',
    });
  });

  test('is read-only for the probe, whose session is gone afterwards', async () => {
    const clients = async () => {
      const rows = await source.run<{ pid: number }>(
        "select pid from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()",
      );
      return rows.map(({ pid }) => pid);
    };
    const before = await clients();
    await probe();
    // PostgreSQL ends a session a moment after its client has left.
    await eventually(async () =>
      expect((await clients()).filter((pid) => !before.includes(pid))).toEqual([]),
    );
    expect(await source.run('select slot_name from pg_replication_slots')).toEqual([]);
  });

  test.each([
    [['book'], ['book']],
    [
      ['public.book', '"Own"."Odd name"'],
      ['Odd name', 'book'],
    ],
    [['sale'], ['sale_new', 'sale_old']],
    [['Own.Odd name'], ['Odd name']],
  ])('the tables %j are %j', async (tables, expected) => {
    const result = await probe({ tables });
    expect(result.source?.tables.map(({ table }) => table)).toEqual(expected);
    expect(errorsOf(result)).toEqual([]);
  });

  test('proves itself by its certificate where the authority is known', async () => {
    const known = { ...servers.host, settings: { ...servers.settings, FOLLOW_CA_FILE: source.certFile } };
    const probed = (url: string) =>
      runOperation(known, 'transfer.probe', {
        ...WANTED,
        project_id: PROJECT,
        source_url: url,
      });
    expect((await probed(source.url({ search: '?sslmode=verify-full' }))).source?.tls).toBe('certificate');
    // The certificate is of `localhost` and 127.0.0.1.
    expect(problems(await probed(source.url({ hostname: '127.0.0.2' })))).toEqual(['connection']);
    expect(problems(await probe({ source_url: source.url({ search: '?sslmode=verify-full' }) }))).toEqual([
      'tls',
    ]);
  });
});

describe('a source that cannot be followed', () => {
  test('has another login whose sessions a cut-over would not see', async () => {
    await during(SEES_NO_OTHERS, `${SEES_OTHERS}; revoke ${OTHER_LOGIN} from app`, async () => {
      expect(await probe()).toMatchObject({
        findings: [
          {
            problem: 'rights',
            severity: 'error',
            message: expect.stringContaining(OTHER_LOGIN),
            statement: 'GRANT pg_read_all_stats, pg_signal_backend TO "app"',
          },
          ...[{}, {}, {}],
        ],
      });
      expect(errorsOf(await probe({ use: 'import' }))).toEqual([]);
      await source.run(`grant ${OTHER_LOGIN} to app`);
      expect(errorsOf(await probe())).toEqual([]);
    });
  });

  test('is refused with everything that is wrong', async () => {
    const change = `alter role app noreplication; alter table book owner to branchgate; create table hidden (id int primary key);
      create extension pg_trgm; create sequence counter; select lo_create(0); alter table "Own"."Odd name" enable row level security;
      alter table "Own"."Odd name" owner to branchgate; grant select on book, "Own"."Odd name" to app`;
    const undo = `alter role app replication; alter table book owner to app; drop table hidden; drop extension pg_trgm;
      drop sequence counter; select lo_unlink(oid) from pg_largeobject_metadata;
      alter table "Own"."Odd name" disable row level security; alter table "Own"."Odd name" owner to app`;
    await during(change, undo, async () => {
      const result = await probe({ room_bytes: 1000, tables: null });
      expect(errorsOf(result).toSorted()).toEqual([
        'large_objects',
        'rights',
        'rights "Own"."Odd name"',
        'rights public.book',
        'rights public.counter',
        'rights public.hidden',
        'size',
      ]);
      expect(result.findings.find(({ object }) => object === 'public.hidden')?.statement).toContain(
        'GRANT SELECT ON public.hidden TO "app"',
      );
      expect(result.findings.at(0)?.severity).toBe('error');
      expect(result.findings.at(-1)?.severity).toBe('warning');
    });
  });

  const ofExtension = async (other = {}) =>
    (await probe(other)).findings.filter(({ problem }) => problem === 'extension');

  test('has an extension that owners of branches may not create, and that nothing needs', async () => {
    const use = `create extension pageinspect;
      create view pages as select * from heap_page_items(get_raw_page('book', 0)); create view of_pages as select lp from pages;
      create function first_page() returns bytea language plpgsql as $$ begin return get_raw_page('book', 0); end $$`;
    const undo = 'drop function first_page; drop extension pageinspect cascade';
    await during(use, undo, async () => {
      expect(errorsOf(await probe())).toEqual([]);
      expect(await ofExtension()).toMatchObject([
        {
          severity: 'warning',
          object: 'pageinspect',
          message: expect.stringMatching(/pages.*first_page\(\)/),
        },
      ]);
    });
  });

  const PAGED = 'create table paged (id int primary key, n text';
  test.each([
    ['a default', 'pageinspect', `${PAGED}, page bytea default get_raw_page('book', 0))`],
    ['a constraint', 'pageinspect', `${PAGED}, check (get_raw_page('book', 0) is not null))`],
    ['an index', 'bloom', `${PAGED}); create index on paged using bloom (n)`],
    [
      'a trigger',
      'insert_username',
      `${PAGED}); create trigger t before insert on paged for each row execute function insert_username(n)`,
    ],
  ])('has an extension that %s needs: %s', async (_, name, use) => {
    await during(`create extension ${name}; ${use}`, `drop table paged; drop extension ${name}`, async () => {
      expect(await ofExtension()).toMatchObject([
        { object: name, severity: 'error', message: expect.stringContaining('paged') },
      ]);
      // What the request leaves alone needs nothing.
      expect(await ofExtension({ exclude_tables: ['paged'] })).toMatchObject([{ severity: 'warning' }]);
    });
  });

  test.each([
    [
      'max_replication_slots',
      "select pg_create_physical_replication_slot('s' || n) from generate_series(1, 4) n",
      'select pg_drop_replication_slot(slot_name) from pg_replication_slots',
      'replication_slots',
    ],
  ])('%s are used up', async (_, change, undo, problem) => {
    await during(change, undo, async () => expect(errorsOf(await probe())).toEqual([problem]));
  });

  test('has no such table, or no such publication', async () => {
    expect(await probe({ tables: ['book', 'nope'] })).toMatchObject({
      findings: expect.arrayContaining([expect.objectContaining({ problem: 'tables', path: 'tables.1' })]),
    });
    expect(errorsOf(await probe({ publication: 'nope' }))).toEqual(['publication']);
  });

  test.each([
    ['for table book', []],
    ["for table book with (publish = 'insert')", ['publication']],
    ['for table book (id)', ['publication']],
    ['for table book where (id > 5)', ['publication']],
  ])('a publication %s has the errors %j', async (tables, expected) => {
    await during(`create publication mine ${tables}`, 'drop publication mine', async () => {
      const result = await probe({ publication: 'mine' });
      expect(errorsOf(result)).toEqual(expected);
      expect(result.source?.tables.map(({ table }) => table)).toEqual(['book']);
    });
  });

  test.each([
    ['a wrong password', { password: 'wrong' }, 'login'],
    ['an unknown database', {}, 'login'],
    ['a port without a server', { port: '1' }, 'connection'],
  ])('%s', async (name, change, problem) => {
    const url = source.url(change);
    const source_url = name === 'an unknown database' ? url.replace(/\/shop$/, '/nope') : url;
    expect(await only({ source_url })).toEqual([problem]);
  });

  test('is not at a public address, and the host says nothing about what is there', async () => {
    const strict = { ...servers.host, settings: { ...servers.settings, FOLLOW_PRIVATE_NETWORKS: [] } };
    for (const port of [String(source.port), '1']) {
      const result = await runOperation(strict, 'transfer.probe', {
        ...WANTED,
        project_id: PROJECT,
        source_url: source.url({ port }),
      });
      expect(result).toEqual({ source: null, findings: [expect.objectContaining({ problem: 'address' })] });
    }
  });
});

test('four projects of a tenant can follow, whatever else follows on the host, and twelve of the host', async () => {
  const tenant = randomUUID();
  const limited = async (other = {}) =>
    (await probe(other)).findings.filter(({ problem }) => problem === 'limit').map(({ message }) => message);
  /** Projects that follow, of the tenant of `PROJECT` or of others. */
  const fill = async (count: number, isOwn: boolean) => {
    for (let n = 0; n < count; n += 1) {
      const project = randomUUID();
      await servers.query(
        `with project as (insert into project (project_id, access_revision, tenant) values ('${project}', 1, '${isOwn ? tenant : randomUUID()}')),
           branch as (insert into branch (branch_id, project_id, job_id, database) values ('${project}', '${project}', '${project}', 'db_${project}') returning 1)
         select from branch`,
      );
      await servers.query(
        `insert into following (branch_id, project_id, database, slot, since) values ('${project}', '${project}', 'db_${project}', 's', now())`,
      );
    }
  };
  await servers.query(
    `insert into project (project_id, access_revision, tenant) values ('${PROJECT}', 1, '${tenant}')`,
  );
  try {
    await fill(3, true);
    await fill(5, false);
    expect(await limited()).toEqual([]);
    await fill(1, true);
    expect(await limited()).toEqual([
      expect.stringMatching(/^On this host, 4 projects of your tenant already follow/),
    ]);
    // A project that moves here takes none of the tenant's places.
    expect(await limited({ of_host: true })).toEqual([]);
    // A copy takes none.
    expect(await limited({ use: 'import' })).toEqual([]);
    // One that was cut over is over.
    await servers.query(
      "update following set cutover = 'done' where branch_id in (select branch_id from following join project using (project_id) where tenant = $1 limit 1)",
      [tenant],
    );
    expect(await limited()).toEqual([]);
    await fill(4, false);
    expect(await limited()).toEqual([expect.stringMatching(/^No more branches can follow/)]);
    expect(await limited({ of_host: true })).toEqual([expect.stringMatching(/^As many databases/)]);
  } finally {
    await servers.query('delete from branch');
    await servers.query('delete from project');
  }
});

test('copies that began before count towards the limit, and none of those that began later', async () => {
  const copies = new Copies();
  const host = { ...servers.host, copies };
  const jobs = Array.from({ length: 3 }, (_, n) => ({ job_id: `job ${n}`, project_id: randomUUID() }));
  const follow = { slot: 's', publication: null };
  const ended = Promise.withResolvers<void>();
  const running = jobs.map((job, n) =>
    copies.run({ ...job, follow: n === 1 ? null : follow }, () => ended.promise),
  );
  expect(copies.following()).toEqual([jobs[0]?.project_id, jobs[2]?.project_id]);
  expect(copies.following('job 2')).toEqual([jobs[0]?.project_id]);
  expect(copies.following('job 0')).toEqual([]);
  await servers.query(
    `insert into project (project_id, access_revision, tenant) select id, 1, 'one' from unnest($1::uuid[]) id`,
    [[PROJECT, ...jobs.map(({ project_id }) => project_id)]],
  );
  expect(await limitFinding(host, PROJECT, { takesTenantPlace: true })).toEqual([]);
  ended.resolve();
  await Promise.all(running);
  expect(copies.following()).toEqual([]);
  await servers.query('delete from project');
});

/** The dump alone: the session of the agent before it would refuse too. */
async function dump(change: Parameters<SourceServer['url']>[0], tls: 'certificate' | 'channel_binding') {
  const parts = readSourceUrl(source.url(change));
  if (!parts.ok) throw new Error(parts.failure.message);
  const { settings } = servers.host;
  return dumpSource(settings, { ...parts.value, address: '127.0.0.1', tls }, { within: 20_000 });
}

describe('a server that nobody knows', () => {
  test.each(['clear', 'older', 'trusted'])('gets no password by the method of %s', async (username) => {
    await during(
      `set password_encryption = '${username === 'older' ? 'md5' : 'scram-sha-256'}';
       create role ${username} login superuser password '${SOURCE_LOGIN.password}'`,
      `drop role ${username}`,
      async () => {
        expect(await only({ source_url: source.url({ username }) })).toEqual(['tls']);
        await expect(dump({ username }, 'channel_binding')).rejects.toThrow(
          /authentication method requirement|channel binding/,
        );
      },
    );
  });

  test('is no source for pg_dump either, which the one of the password is', async () => {
    expect((await dump({}, 'channel_binding')).length).toBeGreaterThan(3);
    await expect(dump({}, 'certificate')).rejects.toThrow(/certificate/);
  });

  /** A server that speaks no PostgreSQL, or only its beginning. */
  async function serving(onClient: (socket: Socket) => void, action: (port: string) => Promise<void>) {
    const sockets = new Set<Socket>();
    const server: Server = createServer((socket) => {
      sockets.add(socket);
      socket.on('error', () => {});
      onClient(socket);
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    try {
      await action(String((server.address() as { port: number }).port));
    } finally {
      for (const socket of sockets) socket.destroy();
      server.close();
    }
  }

  test('without TLS gets nothing but the request for it', async () => {
    const received: Buffer[] = [];
    const refuse = (socket: Socket) =>
      socket.on('data', (chunk) => {
        received.push(chunk);
        socket.write('N');
      });
    await serving(refuse, async (port) => {
      expect(await only({ source_url: source.url({ port }) })).toEqual(['tls']);
      for (const tls of ['certificate', 'channel_binding'] as const)
        await expect(dump({ port }, tls)).rejects.toThrow(/SSL/);
    });
    // SSLRequest (PostgreSQL documentation, 54.2.10).
    expect(received.map((chunk) => chunk.toString('hex'))).toEqual(Array(3).fill('0000000804d2162f'));
  });

  test('that is no PostgreSQL is reported without what it sent', async () => {
    await serving(
      (socket) => socket.write('SSH-2.0-secret-banner\r\n'),
      async (port) => {
        const { findings } = await probe({ source_url: source.url({ port }) });
        expect(findings).toMatchObject([{ problem: 'connection' }]);
        expect(JSON.stringify(findings)).not.toContain('banner');
      },
    );
  });

  test.runIf(IS_NIGHTLY)('a project checks one source at a time', async () => {
    await serving(
      () => {},
      async (port) => {
        const first = probe({ source_url: source.url({ port }) });
        await expect(probe()).rejects.toMatchObject({ code: 'PROJECT_BUSY' });
        expect(problems(await first)).toEqual(['connection']);
      },
    );
    expect(errorsOf(await probe())).toEqual([]);
  });
});
