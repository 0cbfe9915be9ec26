import { expect, test } from 'vitest';
import {
  type BranchAccess,
  ruleFiles,
  withBlocked,
  withinLargerNetworks,
} from '../../../agent/access/rule-files.ts';
import { countsClients } from '../../../agent/pooler/admin-console.ts';
import { loginName } from '../../../shared/branch/login.ts';

const POSTGRES = { socketDir: '/run/pg', port: 5432, poolSize: 20, connections: 40, clients: null };
const ID = '0f0e0d0c-0b0a-4908-8706-050403020100';
const OWNER = loginName(ID, 'owner');
const READ_WRITE = loginName(ID, 'read_write');
const VERIFIER = 'SCRAM-SHA-256$4096:c2FsdA==$c3RvcmVk:c2VydmVy';

const NETWORKS = [
  { role: `net_${'1'.repeat(32)}`, cidr: '10.0.0.0/8' },
  { role: `net_${'2'.repeat(32)}`, cidr: '2001:db8::/32' },
];

const access = (changes: Partial<BranchAccess> = {}): BranchAccess => ({
  database: 'db_shop_prod_br_a-b',
  verifiers: { [OWNER]: VERIFIER, [READ_WRITE]: VERIFIER },
  cidrs: ['10.0.0.0/8', '2001:db8::/32'],
  ...changes,
});

test('PostgreSQL has a line for each network, and the pooler exact pairs of database and logins', () => {
  const lines = `hostssl "db_shop_prod_br_a-b" "${OWNER}","${READ_WRITE}" 10.0.0.0/8 scram-sha-256
hostssl "db_shop_prod_br_a-b" "${OWNER}","${READ_WRITE}" 2001:db8::/32 scram-sha-256
`;
  const { postgresHba, poolerHba } = ruleFiles([access()], NETWORKS, POSTGRES);
  expect(postgresHba).toBe(`hostssl /^db_ +net_${'1'.repeat(32)} 10.0.0.0/8 scram-sha-256
hostssl /^db_ +net_${'2'.repeat(32)} 2001:db8::/32 scram-sha-256
`);
  expect(poolerHba).toBe(`local all all scram-sha-256\n${lines}`);
});

test('clients over WebSocket have one line, which admits from the address of the agent alone', () => {
  const { postgresHba, poolerHba } = ruleFiles([], [], POSTGRES, [], [], true);
  expect(postgresHba).toBe('hostnossl /^db_ /^u_[0-9a-f]{32}_(owner|rw|ro)$ 127.83.81.76/32 scram-sha-256\n');
  expect(poolerHba).toBe('local all all scram-sha-256\n');
});

test('a branch without networks has a pooler entry and logins, but no rule on either port', () => {
  const files = ruleFiles([access({ cidrs: [] })], [], POSTGRES);
  expect(files).toEqual({
    postgresHba: '',
    poolerHba: 'local all all scram-sha-256\n',
    poolerDatabases:
      'db_shop_prod_br_a-b = host=/run/pg port=5432 dbname=db_shop_prod_br_a-b pool_size=20 max_db_connections=40\n',
    poolerUsers: `"${OWNER}" "${VERIFIER}"\n"${READ_WRITE}" "${VERIFIER}"\n`,
  });
});

test('the clients of a database are limited where the pooler knows that limit', () => {
  const { poolerDatabases } = ruleFiles([access()], NETWORKS, { ...POSTGRES, clients: 200 });
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
  expect(() => ruleFiles([access(changes)], [], POSTGRES)).toThrow('cannot be written');
});

test.each([
  ['a login instead of a network', { role: OWNER, cidr: '10.0.0.0/8' }],
  ['another field after the role', { role: `net_${'1'.repeat(32)} all`, cidr: '10.0.0.0/8' }],
  ['an authentication method after the network', { role: `net_${'1'.repeat(32)}`, cidr: '10.0.0.0/8 trust' }],
])('%s is not written', (_, network) => {
  expect(() => ruleFiles([], [network], POSTGRES)).toThrow('cannot be written');
});

test('rejected networks precede the rules of their branch, once, and leave those of others', () => {
  const other = '1f0e0d0c-0b0a-4908-8706-050403020100';
  const branches = [
    access(),
    access({ database: 'db_other', verifiers: { [loginName(other, 'owner')]: VERIFIER } }),
  ];
  const files = ruleFiles(branches, NETWORKS, POSTGRES);
  const blocks = [
    { branch_id: ID, address: '10.0.0.7/32' },
    { branch_id: ID, address: '2001:db8:1:2::/64' },
    { branch_id: ID, address: '10.0.0.7/32' },
  ];
  const blocked = withBlocked(files, blocks, withinLargerNetworks(blocks, branches));
  const rejected = (database: string, logins: string) => `hostssl ${database} ${logins} 10.0.0.7/32 reject
hostssl ${database} ${logins} 2001:db8:1:2::/64 reject
`;
  const all = ['owner', 'rw', 'ro'].map((role) => OWNER.replace('owner', role));
  expect(blocked.postgresHba).toBe(
    rejected('all', all.map((login) => `"${login}"`).join(',')) + files.postgresHba,
  );
  expect(blocked.poolerHba).toContain(
    `local all all scram-sha-256\n${rejected('"db_shop_prod_br_a-b"', `"${OWNER}","${READ_WRITE}"`)}hostssl`,
  );
  expect(blocked.poolerDatabases).toBe(files.poolerDatabases);
});

test('PostgreSQL needs a line for a block only within a larger network that the branch admits', () => {
  const branches = [access({ cidrs: ['10.0.0.0/8', '192.0.2.7/32'] })];
  const block = (address: string | null, branch_id = ID) => ({ branch_id, address });
  const larger = block('10.0.0.7/32');
  const others = [
    block(null),
    block('192.0.2.7/32'),
    block('203.0.113.7/32'),
    block('2001:db8:1:2::/64'),
    block('10.0.0.7/32', '1f0e0d0c-0b0a-4908-8706-050403020100'),
  ];
  expect(withinLargerNetworks([larger, ...others], branches)).toEqual([larger]);
});
