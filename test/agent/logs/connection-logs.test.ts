import { expect, test } from 'vitest';
import { type Attempt, CONNECTION_LOGS } from '../../../agent/logs/connection-logs.ts';

const LOGIN = 'u_a79096997f314ae7ba0bb20a6d524023_rw';
const ATTEMPT: Attempt = { login: LOGIN, database: 'db_shop_prod', address: '192.0.2.7' };

/** The attempt in a line, which must contain one of the log's marks. */
function read(name: 'postgres' | 'pooler', line: string): Attempt | null {
  const log = CONNECTION_LOGS.find((candidate) => candidate.name === name);
  return log?.marks.some((mark) => line.includes(mark)) ? log.read(line) : null;
}

const postgresLine = (changes: Record<string, unknown>) =>
  JSON.stringify({
    user: LOGIN,
    dbname: 'db_shop_prod',
    pid: 17,
    remote_host: '192.0.2.7',
    remote_port: 47872,
    error_severity: 'LOG',
    message: `connection authenticated: identity="${LOGIN}" method=scram-sha-256 (/rules/pg_hba.conf:1)`,
    backend_type: 'client backend',
    ...changes,
  });
const WRONG = {
  error_severity: 'FATAL',
  state_code: '28P01',
  message: `password authentication failed for user "${LOGIN}"`,
};

test.each<[string, Record<string, unknown>]>([
  ['correct', {}],
  ['wrong', WRONG],
])('PostgreSQL: a %s password is an attempt', (_, changes) => {
  expect(read('postgres', postgresLine(changes))).toEqual(ATTEMPT);
});

test.each<[string, Record<string, unknown>]>([
  ['a session over the unix socket', { remote_host: '[local]' }],
  ['a login of the platform', { user: 'branchgate' }],
  ['the line after a correct password', { message: 'connection authorized: user=x database=y' }],
  [
    'an address that no rule admits',
    { error_severity: 'FATAL', state_code: '28000', message: 'no pg_hba.conf entry for host "192.0.2.7"' },
  ],
  ['an error that a statement raised', { ...WRONG, error_severity: 'ERROR' }],
  ['text of a statement', { message: 'he said "message":"connection authenticated: "', state_code: '22012' }],
])('PostgreSQL: %s is not an attempt', (_, changes) => {
  expect(read('postgres', postgresLine(changes))).toBe(null);
});

test('PostgreSQL: a line that is not JSON is not an attempt', () => {
  expect(read('postgres', '{"message":"connection authenticated: ')).toBe(null);
});

const poolerLine = (client: string, text: string, level = 'LOG') =>
  `2026-11-21 10:20:22.972 UTC [22064] ${level} C-0x55ba7d895190: ${client} ${text}`;
const LOGIN_ATTEMPT = `login attempt: db=db_shop_prod user=${LOGIN} tls=TLSv1.3/TLS_AES_256_GCM_SHA384`;

test.each([
  ['192.0.2.7', '192.0.2.7'],
  ['[2001:db8::7]', '2001:db8::7'],
])('PgBouncer: an attempt from %s', (written, address) => {
  const line = poolerLine(`db_shop_prod/${LOGIN}@${written}:35312`, LOGIN_ATTEMPT);
  expect(read('pooler', line)).toEqual({ ...ATTEMPT, address });
});

test.each([
  ['a session over the unix socket', poolerLine(`db_shop_prod/${LOGIN}@unix(21906):6432`, LOGIN_ATTEMPT)],
  [
    'its console',
    poolerLine('pgbouncer/pgbouncer@unix(1):6432', 'login attempt: db=pgbouncer user=pgbouncer'),
  ],
  [
    'the end of a session',
    poolerLine(`db_shop_prod/${LOGIN}@192.0.2.7:1`, 'closing because: login attempt: x'),
  ],
  ['an unknown database', poolerLine(`(nodb)/${LOGIN}@192.0.2.7:1`, LOGIN_ATTEMPT)],
  [
    'a name that looks like a line',
    poolerLine(`(nodb)/db_shop_prod/${LOGIN}@192.0.2.7:1 ${LOGIN_ATTEMPT}@198.51.100.1:1`, LOGIN_ATTEMPT),
  ],
  ['a name with a line break in it', `\t${poolerLine(`db_shop_prod/${LOGIN}@192.0.2.7:1`, LOGIN_ATTEMPT)}`],
])('PgBouncer: %s is not an attempt', (_, line) => {
  expect(read('pooler', line)).toBe(null);
});
