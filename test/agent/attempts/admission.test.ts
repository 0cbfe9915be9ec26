import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ruleFiles, withBlocked } from '../../../agent/access/rule-files.ts';
import { Admission } from '../../../agent/attempts/admission.ts';
import { RULE_FILES } from '../../../agent/servers/configuration.ts';
import { loginName } from '../../../shared/branch/login.ts';

const SHOP = '0f0e0d0c-0b0a-4908-8706-050403020100';
const FARM = '1f0e0d0c-0b0a-4908-8706-050403020100';
const VERIFIER = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';

const access = (branchId: string, database: string, cidrs: string[]) => ({
  database,
  verifiers: { [loginName(branchId, 'owner')]: VERIFIER, [loginName(branchId, 'read_write')]: VERIFIER },
  cidrs,
});
const FILES = ruleFiles(
  [
    access(SHOP, 'db_shop', ['10.0.0.0/8', '2001:db8::/32', '0.0.0.0/2']),
    access(FARM, 'db_farm', ['192.0.2.7/32']),
  ],
  [],
  { socketDir: '/run/pg', port: 5432, poolSize: 20, connections: 40, clients: null },
);

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'branchgate-rules-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

const write = (text: string) => writeFileSync(join(folder, RULE_FILES.poolerHba), text);
const login = loginName(SHOP, 'read_write');

test.each([
  ['10.1.2.3', true],
  ['11.1.2.3', true],
  ['192.0.2.7', false],
  ['2001:db8::7', true],
  ['2001:db9::7', false],
])('%s is admitted to db_shop: %s', (address, admitted) => {
  write(FILES.poolerHba);
  const admission = new Admission(folder);
  admission.refresh();
  expect(admission.admits({ database: 'db_shop', login, address })).toBe(admitted);
});

test("rejects another branch's login, a login without a rule and an unknown database", () => {
  write(FILES.poolerHba);
  const admission = new Admission(folder);
  admission.refresh();
  const address = '10.1.2.3';
  expect(admission.admits({ database: 'db_shop', login: loginName(FARM, 'read_write'), address })).toBe(
    false,
  );
  expect(admission.admits({ database: 'db_shop', login: loginName(SHOP, 'read_only'), address })).toBe(false);
  expect(admission.admits({ database: 'db_none', login, address })).toBe(false);
});

test('a changed file is read again; a blocked branch or network admits no client', () => {
  write(FILES.poolerHba);
  const admission = new Admission(folder);
  admission.refresh();
  write(withBlocked(FILES, [{ branch_id: SHOP, address: '10.1.2.3/32' }], []).poolerHba);
  admission.refresh();
  expect(admission.admits({ database: 'db_shop', login, address: '10.1.2.3' })).toBe(false);
  expect(admission.admits({ database: 'db_shop', login, address: '10.1.2.4' })).toBe(true);
  const whole = withBlocked(FILES, [{ branch_id: SHOP, address: null }], []);
  write(whole.poolerHba);
  admission.refresh();
  expect(admission.admits({ database: 'db_shop', login, address: '10.1.2.3' })).toBe(false);
  const farm = { database: 'db_farm', login: loginName(FARM, 'owner'), address: '192.0.2.7' };
  expect(admission.admits(farm)).toBe(true);
  expect(whole.poolerHba).toMatch(/db_shop.* reject\n.*db_farm.* scram-sha-256\n$/s);
});
