import { beforeAll, describe, expect, test } from 'vitest';
import type { Api } from '../support/api.ts';
import { query } from '../support/database.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';
import { ownerOf } from '../support/tenants.ts';

const ROLES = ['owner', 'rw', 'ro'] as const;

interface BranchLogins {
  branch: string;
  database: string;
  /** URL of each login, by port. */
  urls: { role: string; port: 'direct' | 'pooled'; url: string }[];
}

let api: Api;
const branches: BranchLogins[] = [];

/** Combines all three logins of a branch on both ports from the two forms of its credentials. */
async function loginsOf(projectId: string, branch: string): Promise<BranchLogins> {
  const [own, readOnly] = await Promise.all([
    api.credentials(projectId, branch),
    api.credentials(projectId, branch, '?role=read_only'),
  ]);
  const login = { owner: own.direct_url, rw: own.database_url, ro: readOnly.database_url };
  const ports = { direct: new URL(own.direct_url).port, pooled: new URL(own.database_url).port };
  const urls = ROLES.flatMap((role) =>
    (['direct', 'pooled'] as const).map((port) => {
      const url = new URL(login[role]);
      url.port = ports[port];
      return { role, port, url: url.href };
    }),
  );
  return { branch: `${projectId}/${branch}`, database: own.database, urls };
}

beforeAll(async () => {
  api = await ownerOf('isolation');
  const made = { Alpha: ['one', 'two'], Beta: IS_NIGHTLY ? ['one', 'two'] : [] };
  for (const [name, names] of Object.entries(made)) {
    const project = await api.project(name);
    await api.allow(project.id);
    for (const branch of names) await api.branch(project.id, branch);
    for (const branch of ['main', ...names]) branches.push(await loginsOf(project.id, branch));
  }
});

async function canConnect(url: string, database: string): Promise<boolean> {
  const target = new URL(url);
  target.pathname = `/${database}`;
  try {
    const [found] = await query(target.href, 'select current_database() as database');
    expect(found?.database).toBe(database);
    return true;
  } catch (error) {
    // Refused by rules, by privileges, or because the pooler knows no such database, and for no other reason.
    expect(['28000', '3D000', '42501', '08P01', '28P01']).toContain((error as { code?: string }).code);
    return false;
  }
}

test('every login connects only to its own database, on both ports', async () => {
  const databases = [
    ...branches.map(({ database }) => database),
    'postgres',
    'template1',
    'branchgate',
    'pgbouncer',
  ];
  const wrong: string[] = [];
  let tried = 0;
  for (const logins of branches) {
    for (const { role, port, url } of logins.urls) {
      for (const database of databases) {
        tried += 1;
        const connected = await canConnect(url, database);
        if (connected !== (database === logins.database))
          wrong.push(`${logins.branch} ${role} ${port} → ${database}`);
      }
    }
  }
  expect(wrong).toEqual([]);
  expect(tried).toBe(IS_NIGHTLY ? 6 * 6 * 10 : 4 * 6 * 8);
});

describe("a branch's owner", () => {
  const owner = () =>
    branches[1]?.urls.find(({ role, port }) => role === 'owner' && port === 'direct')?.url ?? '';

  test('can create tables, schemas and trusted extensions', async () => {
    await query(owner(), 'create schema reports');
    await query(owner(), 'create table reports.sums (n int)');
    for (const extension of ['pgcrypto', 'citext', 'hstore', 'pg_trgm']) {
      await query(owner(), `create extension ${extension}`);
    }
    expect(await query(owner(), 'select count(*)::int as n from pg_extension')).toEqual([{ n: 5 }]);
  });

  test.each([
    ['create a database', 'create database mine'],
    ['create a role', 'create role mine'],
    ['become the platform', 'set role branchgate'],
    ['become another login', () => `set role u_${'0'.repeat(32)}_owner`],
    ['drop another database', () => `drop database "${branches[2]?.database}"`],
    ['drop its own database', () => `drop database "${branches[1]?.database}"`],
    ['rename its database', () => `alter database "${branches[1]?.database}" rename to db_mine`],
    ['lift its connection limit', () => `alter database "${branches[1]?.database}" connection limit 5`],
    ['make itself a superuser', 'alter role current_user superuser'],
    ['give itself the right to create databases', 'alter role session_user createdb'],
    ['read files of the host', "select pg_read_file('/etc/passwd')"],
    ['run programs', "copy (select 1) to program 'true'"],
    ['create an untrusted extension', 'create extension file_fdw'],
    [
      'end the sessions of others',
      "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'branchgate'",
    ],
    ['read the verifiers', 'select rolpassword from pg_authid'],
    ['reload the servers', 'select pg_reload_conf()'],
    ['enable replication', 'alter role session_user replication'],
    ['change settings of the system', "alter system set log_connections = ''"],
  ])('cannot %s', async (_, statement) => {
    await expect(
      query(owner(), typeof statement === 'string' ? statement : statement()),
    ).rejects.toMatchObject({
      code: expect.stringMatching(/^(42501|42704|22023|55006|42939)$/),
    });
  });

  test('sees no statements and no addresses of other branches', async () => {
    const foreign = await query(
      owner(),
      `select query, client_addr from pg_stat_activity
       where datname <> current_database() and (query not like '<insufficient%' or client_addr is not null)`,
    );
    expect(foreign).toEqual([]);
  });
});
