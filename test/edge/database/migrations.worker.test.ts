import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { applyMigrations, BEFORE_BASELINE } from '../../../dev/gateway/migrations.ts';
import { startD1 } from '../../support/records/d1.ts';

const FOLDER = join(import.meta.dirname, '../../../edge/database/migrations');

test('a database of before version 1.0.0 is refused, and nothing changes', async () => {
  const d1 = await startD1();
  await applyMigrations(d1, FOLDER);
  await d1.exec("UPDATE d1_migrations SET name = '0000_initial.sql' WHERE name = '0000_baseline.sql'");
  await d1.exec('DROP TABLE webhooks');
  await expect(applyMigrations(d1, FOLDER)).rejects.toThrow(BEFORE_BASELINE);
  const { results } = await d1.prepare("SELECT name FROM sqlite_master WHERE name = 'webhooks'").run();
  expect(results).toEqual([]);
});

const GRANT = {
  client_id: 'c',
  client_name: 'C',
  role: 'viewer',
  scopes: '["read"]',
  code_expires_at: 1,
  redirect_uri: 'http://127.0.0.1/',
  code_challenge: 'x',
  resource: 'r',
  expires_at: 9,
  created_by: 'user',
  tenant_id: 't',
  created_at: 1,
};
const SESSION = { ip: '192.0.2.1', user_agent: 'a', last_used_at: 2, expires_at: 9, created_at: 1 };
const SEALED = { provider_id: 'provider', checked_at: 3, key_id: 'k', sealed_refresh: 's' };

test('sessions, refresh tokens and grants of accounts and of people survive their move into one table', async () => {
  const before = mkdtempSync(join(tmpdir(), 'branchgate-migrations-'));
  onTestFinished(() => rmSync(before, { recursive: true }));
  cpSync(FOLDER, before, { recursive: true, filter: (file) => !/000[4-9]_.*\.sql$/.test(file) });
  const d1 = await startD1(before);
  const insert = (table: string, row: Record<string, string | number>) =>
    d1
      .prepare(
        `insert into ${table} (${Object.keys(row).join()}) values (${Object.keys(row)
          .map(() => '?')
          .join()})`,
      )
      .bind(...Object.values(row))
      .run();
  const times = { created_at: 1, updated_at: 1 };
  const who = { email: 'a@b.example', role: 'owner', tenant_id: 't' };
  await insert('users', { id: 'user', issuer: 'i', gid: 'g', ...who, tenant_seen_at: 1, ...times });
  await insert('accounts', { id: 'account', name: 'A', password_hash: 'h', ...who, ...times });
  await insert('identity_providers', {
    id: 'provider',
    tenant_id: 't',
    kind: 'oidc',
    name: 'P',
    issuer: 'i',
    client_id: 'c',
    key_id: 'k',
    sealed_secret: 's',
    default_role: 'viewer',
    roles: '{}',
    ...times,
  });
  await insert('provider_people', {
    id: 'person',
    provider_id: 'provider',
    user_name: 'a',
    claim_values: '[]',
    provisioned: 0,
    active: 1,
    attributes: '{}',
    ...who,
    ...times,
  });
  await insert('sessions', { id: 's1', account_id: 'account', ...SESSION });
  await insert('provider_sessions', { id: 's2', person_id: 'person', ...SEALED, ...SESSION });
  await insert('refresh_tokens', {
    id: 'r1',
    family_id: 's1',
    account_id: 'account',
    used_at: 4,
    expires_at: 9,
  });
  await insert('refresh_tokens', { id: 'gone', family_id: 'ended', account_id: 'account', expires_at: 9 });
  await insert('provider_refresh_tokens', { id: 'r2', family_id: 's2', person_id: 'person', expires_at: 9 });
  await insert('oauth_grants', { id: 'g0', code_hash: 'none', ...GRANT });
  await insert('oauth_grants', { id: 'g1', code_hash: 'account', session_id: 's1', ...GRANT });
  await insert('oauth_grants', { id: 'g2', code_hash: 'person', provider_session_id: 's2', ...GRANT });

  await applyMigrations(d1, FOLDER);
  const rows = async (query: string) => (await d1.prepare(query).run()).results;
  const none = { account_id: null, person_id: null, provider_id: null, checked_at: null };
  expect(await rows('select * from sessions order by id')).toEqual([
    { ...none, key_id: null, sealed_refresh: null, id: 's1', account_id: 'account', ...SESSION },
    { ...none, id: 's2', person_id: 'person', ...SEALED, ...SESSION },
  ]);
  expect(await rows('select * from refresh_tokens order by id')).toEqual([
    { id: 'r1', session_id: 's1', used_at: 4, expires_at: 9 },
    { id: 'r2', session_id: 's2', used_at: null, expires_at: 9 },
  ]);
  const grants = 'select id, session_id, code_hash, created_by from oauth_grants order by id';
  expect(await rows(grants)).toEqual([
    { id: 'g0', session_id: null, code_hash: 'none', created_by: 'user' },
    { id: 'g1', session_id: 's1', code_hash: 'account', created_by: 'user' },
    { id: 'g2', session_id: 's2', code_hash: 'person', created_by: 'user' },
  ]);
  await d1.prepare("delete from identity_providers where id = 'provider'").run();
  expect(await rows('select id from sessions')).toEqual([{ id: 's1' }]);
  expect(await rows('select id from refresh_tokens')).toEqual([{ id: 'r1' }]);
  expect(await rows('select id from oauth_grants order by id')).toEqual([{ id: 'g0' }, { id: 'g1' }]);
});
