import { appendFile, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Logins } from '../../../agent/measurement/logins.ts';
import { readSettings } from '../../../agent/process/settings.ts';

const USER = `u_${'0'.repeat(32)}_rw`;
const DATABASE = 'db_shop_prod';

let folder: string;
let poolerLog: string;
let postgresLog: string;
let logins: Logins;

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'branchgate-logins-'));
  poolerLog = join(folder, 'pgbouncer.log');
  postgresLog = join(folder, 'log/postgresql.json');
  await mkdir(join(folder, 'log'));
  await writeFile(join(folder, 'current_logfiles'), 'jsonlog log/postgresql.json\n');
  await writeFile(poolerLog, left(1));
  await writeFile(postgresLog, '');
  logins = new Logins(readSettings({ POOLER_LOG: poolerLog, PGDATA_DIR: folder }), []);
  // Existing lines are not counted.
  await logins.poll();
});

afterEach(async () => {
  await logins.close();
  await rm(folder, { recursive: true });
});

const left = (
  port: number,
  { name = `${DATABASE}/${USER}@192.0.2.7`, reason = 'client close request' } = {},
) =>
  `2026-11-21 10:00:00.000 UTC [7] LOG C-0x5577ff55c520: ${name}:${port} closing because: ${reason} (age=0s)\n`;
const listed = (port: number) => ({
  database: DATABASE,
  pointer: '0x5577ff55c520',
  address: '192.0.2.7',
  port,
});

async function poolerLogs(...lines: string[]) {
  await appendFile(poolerLog, lines.join(''));
  await logins.poll();
}

async function postgresLogs(...lines: object[]) {
  await appendFile(postgresLog, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
  await logins.poll();
}

const newPooled = (...ports: number[]) => logins.newPooled(ports.map(listed)).get(DATABASE) ?? 0;

test('a short pooled client is counted from the log', async () => {
  await poolerLogs(left(2), left(3, { name: `${DATABASE}/${USER}@[2001:db8::1]` }));
  expect(newPooled()).toBe(2);
  expect(newPooled()).toBe(0);
});

test('a listed client is counted once, and not again when it disconnects', async () => {
  expect(newPooled(2)).toBe(1);
  expect(newPooled(2)).toBe(0);
  await poolerLogs(left(2));
  expect(newPooled()).toBe(0);
});

test('a listed client is not counted again when its log line is late', async () => {
  expect(newPooled(2)).toBe(1);
  expect(newPooled()).toBe(0);
  await poolerLogs(left(2));
  expect(newPooled()).toBe(0);
});

test.each([
  ['a client that was rejected', left(2, { reason: 'SASL authentication failed' })],
  ['a client of this host', left(2, { name: `${DATABASE}/${USER}@unix` })],
  [
    'a client with a forged name',
    left(2, { name: `(nodb)/x closing because: client close request (age=0s)` }),
  ],
  ['another user', left(2, { name: `${DATABASE}/pgbouncer@192.0.2.7` })],
])('%s is not counted', async (_case, line) => {
  await poolerLogs(line);
  expect(newPooled()).toBe(0);
});

test('sessions over the unix socket are subtracted, even if the log line precedes the statistics', async () => {
  const authorized = { message: 'connection authorized: user=x', dbname: DATABASE };
  await postgresLogs(
    { ...authorized, remote_host: '[local]' },
    { ...authorized, remote_host: '192.0.2.7' },
    { ...authorized, remote_host: '[local]', message: 'statement: "message":"connection authorized: ' },
  );
  expect(logins.direct(DATABASE, 0)).toBe(0);
  expect(logins.direct(DATABASE, 2)).toBe(1);
  expect(logins.direct(DATABASE, 2)).toBe(2);
});

test('only the sessions of databases without a baseline are forgotten', async () => {
  const authorized = { message: 'connection authorized: user=x', remote_host: '[local]' };
  await postgresLogs({ ...authorized, dbname: DATABASE }, { ...authorized, dbname: 'db_other_prod' });
  logins.forgetLocalExcept(new Set(['db_other_prod']));
  expect(logins.direct(DATABASE, 1)).toBe(1);
  expect(logins.direct('db_other_prod', 1)).toBe(0);
});
