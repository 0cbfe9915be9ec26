import { expect, test } from 'vitest';
import { type BranchAccess, ruleFiles, withBlocked } from '../../../agent/access/rule-files.ts';
import { countsClients } from '../../../agent/pooler/version.ts';
import { loginName } from '../../../shared/branch/login.ts';

const POSTGRES = { socketDir: '/run/pg', port: 5432, poolSize: 20, connections: 40, clients: null };
const ID = '0f0e0d0c-0b0a-4908-8706-050403020100';
const OWNER = loginName(ID, 'owner');
const READ_WRITE = loginName(ID, 'read_write');
const VERIFIER = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';

const access = (changes: Partial<BranchAccess> = {}): BranchAccess => ({
  database: 'db_shop_prod_br_a-b',
  verifiers: { [OWNER]: VERIFIER, [READ_WRITE]: VERIFIER },
  cidrs: ['10.0.0.0/8', '2001:db8::/32'],
  ...changes,
});

test('the rules of both ports name exact pairs of database and logins, one line per network', () => {
  const lines = `hostssl "db_shop_prod_br_a-b" "${OWNER}","${READ_WRITE}" 10.0.0.0/8 scram-sha-256
hostssl "db_shop_prod_br_a-b" "${OWNER}","${READ_WRITE}" 2001:db8::/32 scram-sha-256
`;
  const { postgresHba, poolerHba } = ruleFiles([access()], POSTGRES);
  expect(postgresHba).toBe(lines);
  expect(poolerHba).toBe(`local all all scram-sha-256\n${lines}`);
});

test('a branch without networks has a pooler entry and logins, but no rule on either port', () => {
  const files = ruleFiles([access({ cidrs: [] })], POSTGRES);
  expect(files).toEqual({
    postgresHba: '',
    poolerHba: 'local all all scram-sha-256\n',
    poolerDatabases:
      'db_shop_prod_br_a-b = host=/run/pg port=5432 dbname=db_shop_prod_br_a-b pool_size=20 max_db_connections=40\n',
    poolerUsers: `"${OWNER}" "${VERIFIER}"\n"${READ_WRITE}" "${VERIFIER}"\n`,
  });
});

test('the clients of a database are limited where the pooler knows that limit', () => {
  const { poolerDatabases } = ruleFiles([access()], { ...POSTGRES, clients: 200 });
  expect(poolerDatabases).toContain(' max_db_connections=40 max_db_client_connections=200\n');
  expect([countsClients('1.18.0'), countsClients('1.23.1'), countsClients('1.24.0')]).toEqual([
    false,
    false,
    true,
  ]);
});

test.each<[string, Partial<BranchAccess>]>([
  ['a keyword', { database: 'all' }],
  ['a quote in the database', { database: 'db_a"' }],
  ['a line break in the database', { database: 'db_a\nlocal all all trust' }],
  ['another setting in the database', { database: 'db_a host=evil' }],
  ['64 characters', { database: `db_${'a'.repeat(61)}` }],
  ['a login that is not a branch login', { verifiers: { branchgate: VERIFIER } }],
  ['a login that names a group', { verifiers: { [`+${OWNER}`]: VERIFIER } }],
  ['a quote in the verifier', { verifiers: { [OWNER]: `${VERIFIER}"` } }],
  ['a password instead of a verifier', { verifiers: { [OWNER]: 'secret' } }],
  ['a keyword instead of a network', { cidrs: ['all'] }],
  ['an authentication method after the network', { cidrs: ['10.0.0.0/8 trust'] }],
  ['a network with host bits', { cidrs: ['10.0.0.1/8'] }],
])('%s is not written', (_, changes) => {
  expect(() => ruleFiles([access(changes)], POSTGRES)).toThrow('cannot be written');
});

test('rejected networks precede the rules of their branch, once, and leave those of others', () => {
  const other = '1f0e0d0c-0b0a-4908-8706-050403020100';
  const files = ruleFiles(
    [access(), access({ database: 'db_other', verifiers: { [loginName(other, 'owner')]: VERIFIER } })],
    POSTGRES,
  );
  const blocked = withBlocked(files, [
    { branch_id: ID, address: '10.0.0.7/32' },
    { branch_id: ID, address: '2001:db8:1:2::/64' },
    { branch_id: ID, address: '10.0.0.7/32' },
  ]);
  const logins = `"${OWNER}","${READ_WRITE}"`;
  const rejected = `hostssl "db_shop_prod_br_a-b" ${logins} 10.0.0.7/32 reject
hostssl "db_shop_prod_br_a-b" ${logins} 2001:db8:1:2::/64 reject
`;
  expect(blocked.postgresHba).toBe(rejected + files.postgresHba);
  expect(blocked.poolerHba).toContain(`local all all scram-sha-256\n${rejected}hostssl`);
  expect(blocked.poolerDatabases).toBe(files.poolerDatabases);
});
